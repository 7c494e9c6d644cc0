// Package siteusers reads which of the host's ids nodes may share: the admin's list /etc/berth/users.yaml, and what the host
// itself has given away.
package siteusers

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"berth/internal/host"
	"berth/internal/spec"
	"berth/internal/spec/vnode"
	"berth/internal/storage/ids"
	"berth/internal/sys/layout"
	"berth/internal/sys/refuse"
)

// Of reads the ids that this host shares, if the node shares any; else it reads nothing.
func Of(l layout.Layout, n *vnode.Node) (ids.Site, error) {
	if len(n.SharedIDs()) == 0 {
		return ids.Site{}, nil
	}
	return Read(l.UsersList(), "/etc")
}

// Read reads the admin's list, and subuid and subgid in etc. Without a list nothing is allowed. Error: refuse.Cannot if others than
// root can write the list, or if anything in it is wrong.
func Read(list, etc string) (ids.Site, error) {
	s := ids.Site{List: list}
	text, err := readOwn(list)
	if errors.Is(err, fs.ErrNotExist) {
		return s, nil
	}
	if err != nil {
		return s, err
	}
	allowed, err := spec.ParseAllowList(list, text)
	if err != nil {
		return s, refuse.Cannotf("correct it; berth doctor checks it", "the admin's list of ids that nodes may share is wrong: %w", err)
	}
	s.Allowed = allowed.Allow
	s.Given, err = ids.Given(etc)
	return s, err
}

// readOwn reads a file, and refuses it if users other than root can write it.
func readOwn(path string) ([]byte, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0) // opening a FIFO must not block
	if err != nil {
		return nil, fmt.Errorf("read which ids nodes may share: %w", err)
	}
	defer f.Close()
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return nil, fmt.Errorf("look at %s: %w", path, err)
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG {
		return nil, refuse.Cannotf("make it a file, or remove it", "%s is not a file", path)
	}
	if st.Uid != 0 || st.Mode&0o022 != 0 {
		return nil, refuse.Cannotf("chown root "+path+"; chmod go-w "+path,
			"others than root can write %s, which says whose rights nodes may have: owner %d, mode %04o", path, st.Uid, st.Mode&0o7777)
	}
	text, err := io.ReadAll(io.LimitReader(f, spec.LongestFile+1))
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", path, err)
	}
	return text, nil
}

// Checks are the checks of berth doctor on the list, and on nodes that share ids which it does not allow any more.
func Checks(l layout.Layout) []host.Check {
	c := host.Check{
		Area: "nodes", Name: "ids that nodes may share", State: host.OK,
		Why: "with users: as: same, root inside a node is each of these users on the host and on file servers",
	}
	site, err := Read(l.UsersList(), "/etc")
	if err != nil {
		c.State, c.Found = host.Broken, err.Error()
		if e, ok := errors.AsType[*refuse.Error](err); ok {
			c.Remedy = e.Remedy
		}
		return []host.Check{c}
	}
	var words []string
	for _, a := range site.Allowed {
		words = append(words, a.String())
		if why := site.Why(a); why != nil {
			c.State, c.Wanted, c.Remedy = host.Broken, "no id that the host gives away", "# correct "+site.List+": "+why.Error()
		}
	}
	c.Found = "none: " + site.List + " allows none"
	if len(words) > 0 {
		c.Found = strings.Join(words, ", ") + ", by " + site.List
	}
	return append([]host.Check{c}, nodes(l, site)...)
}

// nodes returns a failed check for each node that shares ids which it may not share any more.
func nodes(l layout.Layout, site ids.Site) []host.Check {
	shared, err := ids.Shared(l.IDs())
	if err != nil {
		return nil // without permission to read the claims, report on the list alone
	}
	var all []host.Check
	for _, name := range slices.Sorted(maps.Keys(shared)) {
		for _, r := range shared[name] {
			if why := site.Why(r); why != nil {
				all = append(all, host.Check{
					Area: "nodes", Name: "node " + name, State: host.Broken, Found: why.Error(),
					Why: "it was made when this was allowed, and does not start again", Remedy: "# remove the node, or allow it again in " + site.List,
				})
			}
		}
	}
	return all
}
