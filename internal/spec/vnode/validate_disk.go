package vnode

import (
	"fmt"
	"slices"
	"strings"
)

func checkIO(r *report, n *Node) {
	for i, e := range n.IO {
		at := fmt.Sprintf("io[%d]", i)
		switch {
		case e.Name == "":
			r.bad(at+".name", "missing: an io entry needs a name")
		case !isName(e.Name, longestName):
			r.bad(at+".name", "%q is not a name: "+nameRule, e.Name, longestName)
		}
		given := 0
		for _, s := range []string{e.Device, e.Path, e.Filesystem} {
			if s != "" {
				given++
			}
		}
		if given != 1 {
			r.bad(at, "%d of device, path and filesystem are given: exactly one says which disk", given)
		}
		if e.Device != "" {
			checkPath(r, at+".device", e.Device)
		}
		if e.Path != "" {
			checkPath(r, at+".path", e.Path)
		}
		if e.Filesystem != "" && !isName(e.Filesystem, longestName) {
			r.bad(at+".filesystem", "%q is not a name: "+nameRule, e.Filesystem, longestName)
		}
	}
}

// checkIOUnique compares names and paths as text. Only the host can tell that two paths lead to one disk.
func checkIOUnique(r *report, n *Node) {
	first := firstUse{}
	for i, e := range n.IO {
		at := fmt.Sprintf("io[%d]", i)
		first.check(r, "name", at+".name", e.Name)
		first.check(r, "device", at+".device", e.Device)
		first.check(r, "path", at+".path", e.Path)
		first.check(r, "filesystem", at+".filesystem", e.Filesystem)
	}
}

// standardDevices returns the entries of /dev that every node has.
func standardDevices() []string {
	return []string{
		"/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom", "/dev/tty", "/dev/console", "/dev/ptmx",
		"/dev/pts", "/dev/shm", "/dev/mqueue", "/dev/fd", "/dev/stdin", "/dev/stdout", "/dev/stderr",
	}
}

func checkDevices(r *report, n *Node) {
	first := firstUse{}
	for i, d := range n.Devices {
		at := fmt.Sprintf("devices[%d]", i)
		if checkPath(r, at+".path", d.Path) {
			first.check(r, "path", at+".path", d.Path)
		}
		if strings.ContainsAny(d.Path, `[]\`) {
			r.bad(at+".path", "%q is not a pattern: only * and ? stand for other letters", d.Path)
		}
		if d.Unsafe && d.Pattern() {
			r.badIf([]string{at + ".path"}, at+".unsafe", "not possible with a pattern as path: what is unsafe is given by its own name")
		}
		if d.As != "" {
			checkDeviceAs(r, at, d)
			first.check(r, "as", at+".as", d.As)
		}
		for j, c := range d.Access {
			if !strings.ContainsRune("rwm", c) || strings.ContainsRune(d.Access[:j], c) {
				r.bad(at+".access", "%q is not allowed: letters of r, w and m, each once", d.Access)
				break
			}
		}
	}
}

func checkDeviceAs(r *report, at string, d Device) {
	field := at + ".as"
	switch {
	case strings.ContainsAny(d.Path, "*?"):
		r.badIf([]string{at + ".path"}, field, "not possible with a pattern as path: it may stand for several devices")
	case !checkPath(r, field, d.As):
	case !isBelow(d.As, "/dev") || d.As == "/dev":
		r.bad(field, "%q is not allowed: a device appears below /dev", d.As)
	case slices.ContainsFunc(standardDevices(), func(s string) bool { return isBelow(d.As, s) }):
		r.bad(field, "%q is not allowed: every node has its own", d.As)
	}
}

func checkTargetsUnique(r *report, n *Node) {
	first := firstUse{}
	for i, m := range n.Mounts {
		first.check(r, "target", fmt.Sprintf("mounts[%d].target", i), m.Target)
	}
	for i, t := range n.Tmpfs {
		first.check(r, "target", fmt.Sprintf("tmpfs[%d].target", i), t.Target)
	}
	for i, s := range n.Scratch {
		first.check(r, "target", fmt.Sprintf("scratch[%d].target", i), s.Target)
	}
}

// checkFilesystems checks the entries that limit a node on a shared file system. File servers tell nodes apart by the addresses
// from which requests come, so these must be the node's own.
func checkFilesystems(r *report, n *Node) {
	for i, e := range n.IO {
		at := fmt.Sprintf("io[%d]", i)
		if e.Filesystem == "" {
			if e.PerServer {
				r.badIf([]string{at + ".device", at + ".path"}, at+".per_server", "only with filesystem: a disk has no servers")
			}
			continue
		}
		own := slices.ContainsFunc(n.Network, func(w Network) bool { return len(w.Address) > 0 && w.Mode != NAT && w.Mode != None })
		if !own {
			rests := []string{"network"}
			for j := range n.Network {
				rests = append(rests, fmt.Sprintf("network[%d].address", j), fmt.Sprintf("network[%d].mode", j))
			}
			r.badIf(rests, at+".filesystem", "needs an interface with an address of its own: file servers tell nodes apart by address, and mode nat hides it")
		}
		for j, m := range n.Mounts {
			if m.Remote() && m.Via == ViaHost {
				r.badIf([]string{fmt.Sprintf("mounts[%d].via", j)}, at+".filesystem",
					"not possible with mounts[%d].via: host: file servers would see the host's address instead of the node's", j)
			}
		}
	}
}
