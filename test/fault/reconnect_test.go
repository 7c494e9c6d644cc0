package fault

import (
	"fmt"
	"net"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"

	"berth/test/testkit"
)

// cut is a node with each kind of connection that Berth can restore.
var cut = node{"cut", func(w *world) string {
	w.adapter("eth9")
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.HardwareAddr = "usrbr0", net.HardwareAddr{2, 0, 0x5e, 0x10, 0, 2}
	bridge := &netlink.Bridge{LinkAttrs: attrs}
	testkit.Must(w, w.h.LinkAdd(bridge))
	testkit.Must(w, w.h.LinkSetUp(bridge))
	return `
name: f1
image: host
command: [/bin/sleep, infinity]
network:
  - {mode: bridge, parent: usrbr0, address: [10.9.8.1/24], rate: {tx: 10Mbit/s, rx: 20Mbit/s}}
  - {mode: bridge, address: [10.9.7.1/24]}
  - {mode: macvlan, parent: eth9, address: [192.0.2.78/24]}
`
}}

// lose deletes the node's connections: the veth to the host's bridge, the bridge between nodes, the macvlan.
func (s *scene) lose() {
	s.Helper()
	links, err := s.h.LinkList()
	testkit.Must(s, err)
	for _, l := range links {
		if strings.HasPrefix(l.Attrs().Name, "berth-") {
			testkit.Must(s, s.h.LinkDel(l))
		}
	}
	for _, of := range []struct{ ns, link string }{
		{s.l.Hub(), s.l.Bridge()},
		{fmt.Sprintf("/proc/%d/ns/net", s.status("f1").PID), "eth2"},
	} {
		ns, err := netns.GetFromPath(of.ns)
		testkit.Must(s, err)
		h, err := netlink.NewHandleAt(ns)
		testkit.Must(s, err)
		l, err := h.LinkByName(of.link)
		testkit.Must(s, err)
		testkit.Must(s, h.LinkDel(l))
		h.Close()
		ns.Close()
	}
}

// TestReconnectKilledAtEachStep kills berth repair while it reconnects a node that has lost all its connections. After the
// next repair the node is connected as before.
func TestReconnectKilledAtEachStep(t *testing.T) {
	s := newScene(t, cut)
	s.ok("apply", "-f", s.spec)
	s.steps(func(n int) bool {
		s.endKeeper() // it would reconnect the node before repair does
		s.lose()
		what, killed := s.point(n, "repair")
		if killed {
			s.ok("repair")
		}
		s.settled(what, s.states, "up")
		if out := s.ok("ls").out; strings.Contains(out, "NOT-CONNECTED") {
			s.Fatalf("%s:\n%s", what, out)
		}
		if out := s.ok("show", "f1").out; strings.Count(out, "spoof check ") != 3 || strings.Contains(out, "somebody else wrote it") {
			s.Fatalf("%s:\n%s", what, out)
		}
		return killed
	})
	s.ok("rm", "--force", "f1")
	s.settled("removed", s.states, "none")
}
