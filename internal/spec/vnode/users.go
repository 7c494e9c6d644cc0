package vnode

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// OwnIDs is how many user and group ids a node always has: 0 to OwnIDs-1 inside.
const OwnIDs = 1 << 16

// The host's ids from which nodes get those of their own: from FirstOwn to, but not including, EndOwn.
const (
	FirstOwn = 0x40000000
	EndOwn   = 0x70000000
)

// LastID is the highest id that a node can have: above it some programs, crun among them, take ids for negative.
const LastID = 1<<31 - 1

// MostOwnIDs is the most ids that the extents of one node can add to those of its own.
const MostOwnIDs = 64 * OwnIDs

// IDExtent is a run of ids that a node has besides its own 0 to 65535, or in place of some of them.
type IDExtent struct {
	From  int    `json:"from" doc:"first id, as the node sees it" range:"1..2147483647"`
	Count int    `json:"count" doc:"how many ids" range:"1..2147483647"`
	As    string `json:"as" doc:"same: each is this id on the host and on the wire too, for what cannot be idmapped (NFS, FUSE); an admin must have allowed it in /etc/berth/users.yaml. private: ids of the node's own" allowed:"same|private"`
	Of    string `json:"of,omitempty" doc:"uid or gid: of users or of groups alone; default: of both" allowed:"uid|gid"`
}

// The ways an extent's ids are mapped, and whether they are users' or groups' ids.
const (
	SameIDs    = "same"
	PrivateIDs = "private"
	UserIDs    = "uid"
	GroupIDs   = "gid"
)

// Range returns the extent's ids.
func (e IDExtent) Range() IDRange { return IDRange{From: e.From, Count: e.Count} }

// String describes the extent: "100000-199999 same", "1500 same of gid".
func (e IDExtent) String() string {
	text := e.Range().String() + " " + e.As
	if e.Of != "" {
		text += " of " + e.Of
	}
	return text
}

// Extents describes several extents: "100000-199999 same, 300000 private of uid".
func Extents(users []IDExtent) string {
	var words []string
	for _, e := range users {
		words = append(words, e.String())
	}
	return strings.Join(words, ", ")
}

// has reports whether the extent's ids are ids of users, or with gid of groups.
func (e IDExtent) has(gid bool) bool { return e.Of == "" || (e.Of == GroupIDs) == gid }

// IDRange is the ids From … From+Count-1.
type IDRange struct {
	From  int `json:"from" range:"1..2147483647"`
	Count int `json:"count" range:"1..2147483647"`
}

// End returns the id after the last one.
func (r IDRange) End() int { return r.From + r.Count }

// Overlaps reports whether two ranges have an id in common.
func (r IDRange) Overlaps(o IDRange) bool { return r.From < o.End() && o.From < r.End() }

// String returns "100000-199999", or "1500" for one id.
func (r IDRange) String() string {
	if r.Count == 1 {
		return fmt.Sprint(r.From)
	}
	return fmt.Sprintf("%d-%d", r.From, r.End()-1)
}

// AllowList is an admin's file of the host's ids that nodes may share.
type AllowList struct {
	Allow []IDRange `json:"allow"`
}

// IDLine is one line of a node's map of ids: Count ids from Inside. They are the host's ids of the same numbers if Same. Else
// they are the node's own ids from Own: 0 to OwnIDs-1 lie in its first range of the host, those from OwnIDs in its second, and so
// on. No line crosses from one range to the next.
type IDLine struct {
	Inside, Count int
	Same          bool
	Own           int
}

// IDLines returns a node's map of user ids, or of group ids, in ascending order. The node's own ids have holes where an extent
// says same. Extents of ids of its own follow 0 to 65535 in the order of the spec.
func IDLines(users []IDExtent, gid bool) []IDLine {
	var same, lines []IDLine
	next := OwnIDs
	for _, e := range users {
		switch {
		case !e.has(gid):
		case e.As == SameIDs:
			same = append(same, IDLine{Inside: e.From, Count: e.Count, Same: true})
		default:
			for at, left := e.From, e.Count; left > 0; {
				n := min(left, OwnIDs-next%OwnIDs)
				lines = append(lines, IDLine{Inside: at, Count: n, Own: next})
				at, left, next = at+n, left-n, next+n
			}
		}
	}
	byInside := func(a, b IDLine) int { return cmp.Compare(a.Inside, b.Inside) }
	slices.SortFunc(same, byInside)
	at := 0
	for _, s := range append(same, IDLine{Inside: OwnIDs}) {
		if to := min(s.Inside, OwnIDs); at < to {
			lines = append(lines, IDLine{Inside: at, Count: to - at, Own: at})
		}
		at = max(at, s.Inside+s.Count)
	}
	lines = append(lines, same...)
	slices.SortFunc(lines, byInside)
	return lines
}

// MoreRanges returns how many ranges of the host a node needs besides its first, for the extents that are private.
func MoreRanges(users []IDExtent) int {
	most := 0
	for _, gid := range []bool{false, true} {
		most = max(most, ownIDs(users, gid))
	}
	return (most + OwnIDs - 1) / OwnIDs
}

func ownIDs(users []IDExtent, gid bool) (n int) {
	for _, e := range users {
		if e.As == PrivateIDs && e.has(gid) {
			n += e.Count
		}
	}
	return n
}

// HasID reports whether a user id, or with gid a group id, exists in the node.
func (n *Node) HasID(gid bool, id uint32) bool {
	return slices.ContainsFunc(IDLines(n.Users, gid), func(l IDLine) bool { return int(id) >= l.Inside && int(id) < l.Inside+l.Count })
}

// SharedIDs returns the extents that are ids of the host.
func (n *Node) SharedIDs() []IDExtent {
	return slices.DeleteFunc(slices.Clone(n.Users), func(e IDExtent) bool { return e.As != SameIDs })
}

// KeepsOwners reports whether the files that a node wrote with its old extents belong to the same ids inside with the new ones.
// Ids that were added change nothing; files of shared ids that were taken away belong to the user nobody inside.
func KeepsOwners(old, new []IDExtent) bool {
	for _, gid := range []bool{false, true} {
		was, wasMore := ownLines(old, gid)
		is, isMore := ownLines(new, gid)
		if !slices.Equal(was, is) || len(wasMore) > len(isMore) || !slices.Equal(wasMore, isMore[:len(wasMore)]) {
			return false
		}
	}
	return true
}

// ownLines returns the lines of 0 to 65535, shared ones cut to these, and those of private extents in their order on the host.
func ownLines(users []IDExtent, gid bool) (first, more []IDLine) {
	for _, l := range IDLines(users, gid) {
		switch {
		case l.Inside < OwnIDs:
			l.Count = min(l.Count, OwnIDs-l.Inside)
			first = append(first, l)
		case !l.Same:
			more = append(more, l)
		}
	}
	slices.SortFunc(more, func(a, b IDLine) int { return cmp.Compare(a.Own, b.Own) })
	return first, more
}
