package link

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/vishvananda/netlink"

	"berth/internal/host/netif"
	"berth/internal/network/address"
	"berth/internal/network/sriov"
	"berth/internal/spec/vnode"
	"berth/internal/sys/mac"
	"berth/internal/sys/refuse"
	"berth/internal/sys/step"
	"berth/test/testkit"
)

func (b *lab) claim(node string, net vnode.Network) *address.ClaimMAC {
	b.t.Helper()
	steps, err := Claims(Input{Node: node, Networks: []vnode.Network{net}, SiteID: "site", MACDir: filepath.Join(b.dir, "macs"), HostLock: b.lock()})
	testkit.Must(b.t, err)
	return steps[0].(*address.ClaimMAC)
}

func TestClaimMAC(t *testing.T) {
	b := newLab(t)
	auto := vnode.Network{Name: "eth0", Mode: vnode.Bridge, MAC: vnode.AutoMAC}
	first, second := address.DeriveMAC("site", "a", "eth0", 0), address.DeriveMAC("site", "a", "eth0", 1)

	// A link of the host has the first derived MAC.
	b.need(&netlink.Bridge{LinkAttrs: netif.Attrs("br9", 0, first)})
	c := b.claim("a", auto)
	if got := MACs([]step.Step{c}); got["eth0"] != first {
		t.Errorf("before Do: %v", got)
	}
	testkit.Must(b.t, do([]step.Step{c}))
	if c.MAC != second {
		t.Errorf("claimed %s, not %s", c.MAC, second)
	}
	// The node keeps its MAC, even when the first is free again.
	testkit.Must(b.t, b.h.LinkDel(b.get("br9")))
	again := b.claim("a", auto)
	testkit.Must(b.t, do([]step.Step{again}))
	if again.MAC != second {
		t.Errorf("claimed %s the second time, not %s", again.MAC, second)
	}
	// Another node cannot claim the same MAC.
	other := b.claim("b", vnode.Network{Name: "eth0", Mode: vnode.Bridge, MAC: second.String()})
	err := do([]step.Step{other})
	if refuse.KindOf(err) != refuse.Busy {
		t.Errorf("a taken MAC: %v", err)
	}
	t.Log(err)
	testkit.Must(b.t, undo([]step.Step{other})) // a refused claim's Undo does not remove the owner's claim
	testkit.Must(b.t, c.Verify(context.Background()))
	// Undo needs only what was journalled before Do.
	testkit.Must(b.t, undo([]step.Step{b.claim("a", auto)}))
	if left, _ := os.ReadDir(c.Dir); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
	// The MAC of a link of the host is taken, unless that link is lent for it.
	b.adapter("eth0")
	given := vnode.Network{Name: "eth0", Mode: vnode.Macvlan, MAC: adapterMAC, Parent: "eth0"}
	if err := do([]step.Step{b.claim("a", given)}); refuse.KindOf(err) != refuse.Busy {
		t.Errorf("the MAC of a link: %v", err)
	}
	given.Mode = vnode.Phys
	testkit.Must(b.t, do([]step.Step{b.claim("a", given)}))
	// A MAC that a leased virtual function will have on the host is taken.
	boot, err := step.BootID()
	testkit.Must(b.t, err)
	lease := sriov.Lease{Owner: sriov.Owner{Node: "v", If: "eth0", Run: b.dir}, PCI: "0000:01:10.0", Token: "t", Boot: boot}
	leases := sriov.Leases(filepath.Join(b.dir, "vfs"))
	testkit.Must(b.t, leases.Take(lease))
	testkit.Must(b.t, leases.Reserve(lease, mac.Must("02:00:5e:10:00:55")))
	home := b.claim("a", vnode.Network{Name: "eth7", Mode: vnode.Bridge, MAC: "02:00:5e:10:00:55"})
	home.Leases = leases
	if err := do([]step.Step{home}); refuse.KindOf(err) != refuse.Busy || !strings.Contains(err.Error(), "as soon as node v/eth0 gives it back") {
		t.Errorf("a MAC that comes home: %v", err)
	}
	testkit.Must(b.t, leases.Release("t"))
	testkit.Must(b.t, do([]step.Step{home}))
}

// TestHeldMACIsTaken starts a node after a link of the host has got the node's MAC.
func TestHeldMACIsTaken(t *testing.T) {
	b := newLab(t)
	b.adapter("eth0")
	in := Input{Node: "a", SiteID: "site", MACDir: filepath.Join(b.dir, "macs"), HostLock: b.lock(), Run: filepath.Join(b.dir, "run")}
	start := func(nets ...vnode.Network) error {
		t.Helper()
		n := vnode.Node{Network: nets}
		vnode.Defaults(&n)
		facts, err := ReadFacts(n.Network, "", "")
		testkit.Must(b.t, err)
		in.Networks, in.Facts = n.Network, facts
		testkit.Must(b.t, in.Facts.ReadClaims(in))
		_, err = Claims(in)
		return err
	}
	const given = "02:00:5e:10:00:77"
	nets := map[string]vnode.Network{
		"derived":  {Name: "eth0", Mode: vnode.Bridge, MAC: vnode.AutoMAC},
		"given":    {Name: "data0", Mode: vnode.Macvlan, Parent: "eth0", MAC: given},
		"its link": {Name: "lent0", Mode: vnode.Phys, Parent: "eth0", MAC: adapterMAC},
	}
	var claims []step.Step
	for _, n := range nets {
		testkit.Must(b.t, start(n)) // nothing is claimed yet
		claims = append(claims, b.claim("a", n))
	}
	testkit.Must(b.t, do(claims))
	for name, n := range nets {
		if err := start(n); err != nil {
			t.Errorf("%s: nobody else has its MAC: %v", name, err)
		}
	}
	b.need(&netlink.Bridge{LinkAttrs: netif.Attrs("br7", 0, mac.Must(given))})
	b.need(&netlink.Bridge{LinkAttrs: netif.Attrs("br8", 0, address.DeriveMAC("site", "a", "eth0", 0))})
	for name, link := range map[string]string{"given": "br7", "derived": "br8"} {
		if err := start(nets[name]); refuse.KindOf(err) != refuse.Busy || !strings.Contains(err.Error(), " is that of link "+link+" now") {
			t.Errorf("%s: %v", name, err)
		}
	}
	// The check ignores other nodes' MACs, and a running node.
	in.Node = "b"
	testkit.Must(b.t, start(nets["derived"]))
	in.Node = "a"
	testkit.Must(b.t, os.Mkdir(in.Run, 0o700))
	testkit.Must(b.t, start(nets["given"]))
}

func TestKindsDecode(t *testing.T) {
	for kind, empty := range Kinds() {
		s := empty()
		if s.Kind() != kind {
			t.Errorf("%s makes a step of kind %s", kind, s.Kind())
		}
		// A step that was killed before Prepare has nothing to undo.
		if err := s.Undo(context.Background()); err != nil && kind != "link.bridge" {
			t.Errorf("%s: undo of an empty step: %v", kind, err)
		}
	}
	if d := cmp.Diff(23, len(Kinds())); d != "" {
		t.Error(d)
	}
}
