package want

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"berth/internal/spec/vnode"
	"berth/internal/sys/mac"
)

// TestOf: entries on shared file systems are told with the addresses that file servers see: those of the spec, leases, and what a kernel
// derives from a MAC; and with how requests can come from others.
func TestOf(t *testing.T) {
	n := &vnode.Node{
		IO: []vnode.IO{
			{Name: "disk", Path: "/srv", Weight: 10},
			{Name: "s", Filesystem: "shared", Read: vnode.IORate{Rate: 1e6, IOPS: 5}, Weight: 7, PerServer: true},
		},
		Network: []vnode.Network{
			{Name: "eth0", Mode: vnode.NAT, Address: []string{"10.9.9.9/24"}},
			{Name: "eth1", Mode: vnode.Macvlan, Address: []string{"192.0.2.7/24", "2001:db8::7/64"}},
			{Name: "eth2", Mode: vnode.Bridge},
			{Name: "eth3", Mode: vnode.Bridge, DHCP: true, Spoof: true},
			{Name: "eth4", Mode: vnode.Phys, DHCP: true},
			{Name: "eth5", Mode: vnode.Bridge, DHCP: true},
			{Name: "eth6", Mode: vnode.Bridge, DHCP: true},
		},
	}
	own := mac.Must("02:00:5e:10:00:01")
	got := Of(n, map[string]Interface{"eth1": {MAC: own, Leased: netip.MustParseAddr("192.0.2.99")}, "eth2": {MAC: own}, "eth3": {MAC: own}, "eth5": {MAC: own}, "eth6": {MAC: own, Leased: netip.MustParseAddr("192.0.2.98")}})
	expect := &Node{
		Addresses: []netip.Addr{
			netip.MustParseAddr("192.0.2.7"), netip.MustParseAddr("2001:db8::7"), netip.MustParseAddr("192.0.2.99"), netip.MustParseAddr("fe80::5eff:fe10:1"),
			netip.MustParseAddr("fe80::5eff:fe10:1"), netip.MustParseAddr("fe80::5eff:fe10:1"),
			netip.MustParseAddr("fe80::5eff:fe10:1"), netip.MustParseAddr("192.0.2.98"), netip.MustParseAddr("fe80::5eff:fe10:1"),
		},
		Strays: []string{
			"network eth0 is of mode nat: what the node asks for that way comes from the address of its host",
			"network eth2 has no address: the node can ask from whatever address it takes there",
			"network eth3 has spoof: true: the node can ask from the address of anybody",
			"network eth4 has the MAC of its adapter: the node can ask from the IPv6 addresses that its kernel derives from it; give it a mac",
			"network eth5 has no lease yet: a connection that the node opens before file servers hear of its address is not held by way launch while it is open",
		},
		IO: []Entry{{Name: "s", Filesystem: "shared", Read: vnode.IORate{Rate: 1e6, IOPS: 5}, Weight: 7, PerServer: true}},
	}
	if d := cmp.Diff(expect, got, cmp.Comparer(func(a, b netip.Addr) bool { return a == b })); d != "" {
		t.Error(d)
	}
	if _, ok := got.On("shared"); !ok {
		t.Error("it has no entry on shared")
	}
	if _, ok := got.On("other"); ok {
		t.Error("it has an entry on a file system that its spec does not name")
	}
	if w := Of(&vnode.Node{IO: n.IO[:1]}, nil); w != nil {
		t.Errorf("a node without a shared file system tells %+v", w)
	}
}

// TestPart: the parts of all servers are together never above the whole rate, and above what whole numbers lose.
func TestPart(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		servers := rapid.IntRange(1, 500).Draw(t, "servers")
		e := Entry{Read: vnode.IORate{Rate: vnode.Rate(rapid.Int64Range(int64(servers), 1e12).Draw(t, "rate"))}}
		part := e.Part(servers)
		if sum := int64(part.Read.Rate) * int64(servers); sum > int64(e.Read.Rate) || sum <= int64(e.Read.Rate)-int64(servers) {
			t.Fatalf("%d servers with %d each: %d of %d", servers, part.Read.Rate, sum, e.Read.Rate)
		}
		e.PerServer = true
		if e.Part(servers) != e {
			t.Fatal("each server does not allow the whole rate")
		}
	})
}

// TestCheckGate: way gate needs a port of its own, and only servers that have a process a client have it.
func TestCheckGate(t *testing.T) {
	of := func(server, way string, port int) Filesystem {
		return Filesystem{Name: fmt.Sprintf("s%d", port), Path: "/srv", Server: server, Way: way, Port: port}
	}
	other := of("other", Gate, 2121)
	again := other
	again.Name = "again"
	for _, tt := range []struct {
		all  []Filesystem
		says string // a line a mistake
	}{
		{all: []Filesystem{of("samba", Gate, 445), other}},
		{all: []Filesystem{of("samba", Gate, 0)}, says: "filesystems[0].port: is missing: way gate knows the server by the port at which it listens"},
		{all: []Filesystem{of("samba", "", 445)}, says: "filesystems[0].port: only with way: gate or instances"},
		{all: []Filesystem{of("samba", Gate, 65536)}, says: "filesystems[0].port: 65536 is no port: 1 to 65535"},
		{all: []Filesystem{of("xrootd", Gate, 1094)}, says: "filesystems[0].way: \"gate\" is not allowed for server xrootd: preload or network or instances"},
		{all: []Filesystem{of("sftp", Gate, 22)}, says: "filesystems[0].way: \"gate\" is not allowed for server sftp: launch or network"},
		{all: []Filesystem{{Name: "tasks", Path: "/srv", Server: "sftp", Way: "launch"}}, says: "filesystems[0].name: \"tasks\" cannot be the name of a file system: cgroup v1 has a file of this name in each group, where its own would be"},
		{all: []Filesystem{other, again}, says: "filesystems[1].port: another file system has 2121: a process cannot be in the groups of both"},
	} {
		var said []string
		Check(tt.all, func(field, format string, a ...any) { said = append(said, field+": "+fmt.Sprintf(format, a...)) })
		if got := strings.Join(said, "\n"); got != tt.says {
			t.Errorf("%+v:\n%s\nwant\n%s", tt.all, got, tt.says)
		}
	}
}

// TestInstances: what way instances needs is asked for, with its place, and refused for other ways.
func TestInstances(t *testing.T) {
	whole := Filesystem{Name: "a", Path: "/a", Server: "xrootd", Way: Instances, Port: 1094, Command: []string{"/x"}, User: "u", Namespace: "/n"}
	with := func(change func(*Filesystem)) Filesystem {
		f := whole
		change(&f)
		return f
	}
	for want, f := range map[string]Filesystem{
		"":                                                      whole,
		"filesystems[0]: port is missing":                       with(func(f *Filesystem) { f.Port = 0 }),
		"filesystems[0].port: 65536 is no port":                 with(func(f *Filesystem) { f.Port = 65536 }),
		"filesystems[0]: command is missing":                    with(func(f *Filesystem) { f.Command = nil }),
		`filesystems[0].command: "x" is no path`:                with(func(f *Filesystem) { f.Command = []string{"x"} }),
		`filesystems[0].namespace: "n" is no path`:              with(func(f *Filesystem) { f.Namespace = "n" }),
		"filesystems[0].port: only with way: gate or instances": with(func(f *Filesystem) { f.Way, f.Command, f.Namespace = Preload, nil, "" }),
		`filesystems[0].way: "instances" is not`:                with(func(f *Filesystem) { f.Server = "sftp" }),
	} {
		var said []string
		Check([]Filesystem{f}, func(field, format string, a ...any) { said = append(said, field+": "+fmt.Sprintf(format, a...)) })
		if want == "" && said != nil || want != "" && (len(said) == 0 || !strings.HasPrefix(said[0], want)) {
			t.Errorf("%q: %q", want, said)
		}
	}
}
