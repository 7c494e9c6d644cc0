package ids

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

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
			return refuse.Cannotf(fmt.Sprintf("choose other ids; or let that user have others, before its containers are used: "+
				"usermod --del-subuids %s --del-subgids %s USER, then --add-subuids and --add-subgids", g, g), "/etc/subuid or /etc/subgid give ids %s to a user for containers", g)
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

// GivenLater returns the ids out of which useradd gives each new user ranges for containers, of users and of groups (login.defs(5)). etc is
// where login.defs is; what it does not say is as useradd has it built in.
func GivenLater(etc string) ([]vnode.IDRange, error) {
	text, err := os.ReadFile(filepath.Join(etc, "login.defs"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("read which ids useradd gives away: %w", err)
	}
	has := map[string]int{}
	for line := range strings.Lines(string(text)) {
		if f := strings.Fields(line); len(f) == 2 {
			if n, err := strconv.ParseUint(f[1], 0, 32); err == nil {
				has[f[0]] = int(n)
			}
		}
	}
	says := func(key string, builtin int) int {
		if n, ok := has[key]; ok {
			return n
		}
		return builtin
	}
	var all []vnode.IDRange
	for _, of := range []string{"SUB_UID_", "SUB_GID_"} {
		from, to := says(of+"MIN", 100000), says(of+"MAX", 600100000)
		if says(of+"COUNT", 65536) > 0 && to >= from {
			all = append(all, vnode.IDRange{From: from, Count: to + 1 - from})
		}
	}
	return all, nil
}
