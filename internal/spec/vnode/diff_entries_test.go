package vnode

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestByEntry expects one line for each entry that was added or removed, without its defaults, and one line per key of
// an entry that changed.
func TestByEntry(t *testing.T) {
	t.Parallel()
	n := &Node{Name: "a", Image: Image{Kind: HostImage}, Memory: Memory{Max: 1 << 30}}
	more := &Node{
		Name: "a", Image: Image{Kind: HostImage}, Memory: Memory{Max: 2 << 30},
		IO:      []IO{{Name: "data", Path: "/var/tmp", Read: IORate{Rate: 1e6}}},
		Network: []Network{{Address: []string{"192.0.2.10/24"}, Rate: NetRate{TX: 1e9}}, {Name: "wan", Mode: Macvlan, Parent: "eth7", MAC: "02:00:00:00:00:01"}},
		Devices: []Device{{Path: "/dev/fuse"}, {Path: "/dev/sdb.1", As: "/dev/data", Access: "r"}},
		Mounts:  []Mount{{Source: "/srv/a.b", Target: "/mnt/x.y"}, {Source: "/srv", Target: "/srv", ReadOnly: true, Map: Identity}},
	}
	lines := func(diffs []Difference) (all []string) {
		for _, d := range ByEntry(diffs) {
			live := ""
			if d.Live {
				live = " live"
			}
			all = append(all, d.Key+": "+d.Old+" → "+d.New+live)
		}
		return all
	}
	want := []string{
		"memory.max: 1GiB → 2GiB live",
		"io.data:  → /var/tmp, read.rate 1MB/s",
		"net.eth0:  → bridge, address 192.0.2.10/24, tx 1Gbit/s",
		"net.wan:  → macvlan, parent eth7, mac 02:00:00:00:00:01",
		"devices./dev/fuse:  → given live",
		"devices./dev/sdb.1:  → as /dev/data, access r live",
		"mounts./mnt/x.y:  → /srv/a.b",
		"mounts./srv:  → /srv, read-only, map identity",
	}
	if diff := cmp.Diff(want, lines(Diff(n, more))); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff([]string{"mounts./srv: /srv, read-only, map identity → "}, lines(Diff(more, without(more)))); diff != "" {
		t.Error(diff)
	}
	other := *more
	other.Mounts = []Mount{more.Mounts[0], {Source: "/srv", Target: "/srv"}}
	if diff := cmp.Diff([]string{"mounts./srv.read_only: true → ", "mounts./srv.map: identity → idmapped"}, lines(Diff(more, &other))); diff != "" {
		t.Error(diff)
	}
}

// without returns the node without its last mount.
func without(n *Node) *Node {
	c := *n
	c.Mounts = n.Mounts[:1]
	return &c
}
