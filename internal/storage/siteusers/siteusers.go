// Package siteusers reads which of the host's ids nodes may share: the admin's list /etc/berth/users.yaml, and what the host
// itself has given away.
package siteusers

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"math"
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

// Checks are the checks of berth doctor on the list, and on nodes that share ids which they may not share any more. etc is where login.defs,
// subuid and subgid are.
func Checks(l layout.Layout, etc string) []host.Check {
	c := host.Check{
		Area: "nodes", Name: "ids that nodes may share", State: host.OK,
		Why: "with users: as: same, root inside a node is each of these users on the host and on file servers",
	}
	site, err := Read(l.UsersList(), etc)
	var later []vnode.IDRange
	if err == nil {
		later, err = ids.GivenLater(etc)
	}
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
		} else if i := slices.IndexFunc(later, a.Overlaps); i >= 0 && c.State == host.OK {
			c.State = host.Off
			c.Wanted = fmt.Sprintf("no id that useradd gives to a new user for containers (%s): nodes that share it would not start again", later[i])
		}
	}
	if c.State == host.Off { // while it is not too late
		c.Remedy = keep(site.Allowed, later)
	}
	c.Found = "none: " + site.List + " allows none"
	if len(words) > 0 {
		c.Found = strings.Join(words, ", ") + ", by " + site.List
	}
	return append([]host.Check{c}, nodes(l, site)...)
}

// keep returns the commands after which useradd gives away nothing that is allowed: it begins behind that, or, where there is no room, gives
// nothing.
func keep(allowed, later []vnode.IDRange) string {
	free, end := 0, math.MaxInt
	for _, l := range later {
		free, end = max(free, l.From), min(end, l.End())
		for _, a := range allowed {
			if a.Overlaps(l) {
				free = max(free, a.End())
			}
		}
	}
	key, value := "MIN", free
	if end-free < 1<<20 {
		key, value = "COUNT", 0
	}
	return fmt.Sprintf("sed -i '/^[[:space:]]*SUB_[UG]ID_%s/d' /etc/login.defs\nprintf 'SUB_UID_%[1]s %[2]d\\nSUB_GID_%[1]s %[2]d\\n' >>/etc/login.defs", key, value)
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
					Why: "it was made when this was allowed, and does not start again", Remedy: "# " + remedy(why),
				})
			}
		}
	}
	return all
}

// remedy is what a refusal says to do.
func remedy(why error) string {
	if e, ok := errors.AsType[*refuse.Error](why); ok && e.Remedy != "" {
		return e.Remedy + "; or remove the node"
	}
	return "remove the node"
}
