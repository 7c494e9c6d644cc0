package ids

import (
	"cmp"
	"fmt"
	"slices"

	"berth/internal/spec/vnode"
	"berth/internal/sys/refuse"
)

// Site says which of its own ids a host shares with nodes.
type Site struct {
	List    string          // the admin's file
	Allowed []vnode.IDRange // the ids that it allows; none if there is no such file
	Given   []vnode.IDRange // by /etc/subuid and /etc/subgid, to users for their own containers
}

// Check refuses a node that shares ids which the admin has not allowed, or which the host has given away.
func (s Site) Check(n *vnode.Node) error {
	for _, e := range n.SharedIDs() {
		if wrong := s.Why(e.Range()); wrong != nil {
			return fmt.Errorf("node %s: users %s: %w", n.Name, e, wrong)
		}
	}
	return nil
}

// Why returns why no node may share a range; nil if nodes may.
func (s Site) Why(r vnode.IDRange) error {
	if why := vnode.ReservedIDs(r); why != "" {
		return refuse.Invalidf("%s", why)
	}
	if lacks := s.lacks(r); lacks.Count > 0 {
		return refuse.Cannotf(fmt.Sprintf("if nodes may act as these users, let the host's admin add {from: %d, count: %d} to the list allow of %s", r.From, r.Count, s.List),
			"%s of the host's ids are not in %s, the admin's list of what nodes may share", lacks, s.List)
	}
	for _, g := range s.Given {
		if r.Overlaps(g) {
			return refuse.Cannotf("choose other ids, or change these files", "/etc/subuid or /etc/subgid give ids %s to a user for containers", g)
		}
	}
	return nil
}

// lacks returns the first ids of a range that are not allowed; none if all are.
func (s Site) lacks(r vnode.IDRange) vnode.IDRange {
	allowed := slices.SortedFunc(slices.Values(s.Allowed), func(a, b vnode.IDRange) int { return cmp.Compare(a.From, b.From) })
	at := r.From
	for _, a := range allowed {
		if a.From > at {
			return vnode.IDRange{From: at, Count: min(a.From, r.End()) - at}
		}
		if at = max(at, a.End()); at >= r.End() {
			return vnode.IDRange{}
		}
	}
	return vnode.IDRange{From: at, Count: r.End() - at}
}

// Given reads which ranges the host gives to users for their own containers (subuid(5), subgid(5)). etc is where the files are.
func Given(etc string) ([]vnode.IDRange, error) {
	all, err := read(etc, assigned()[2:])
	var ranges []vnode.IDRange
	for _, x := range all {
		ranges = append(ranges, vnode.IDRange{From: int(x.from), Count: int(x.to - x.from)})
	}
	return ranges, err
}
