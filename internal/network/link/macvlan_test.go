package link

import (
	"context"
	"testing"

	"github.com/vishvananda/netlink"

	"berth/internal/host/netif"
	"berth/internal/network/address"
	"berth/internal/spec/vnode"
	"berth/internal/sys/mac"
	"berth/internal/sys/refuse"
	"berth/internal/sys/step"
	"berth/test/testkit"
)

func TestMacvlanBothWays(t *testing.T) {
	b := newLab(t)
	b.adapter("eth0")
	a, c := b.node("a"), b.node("c")
	as := a.steps(vnode.Network{Mode: vnode.Macvlan, Parent: "eth0", Address: []string{"203.0.113.1/24"}})
	cs := c.steps(vnode.Network{Mode: vnode.Macvlan, Parent: "eth0", Address: []string{"203.0.113.2/24"}})
	a.do(as)
	c.do(cs)
	// The network beyond the adapter: the other end of the veth pair.
	addr, err := netlink.ParseAddr("203.0.113.3/24")
	testkit.Must(b.t, err)
	testkit.Must(b.t, b.h.AddrAdd(b.get("wire"), addr))
	for _, tt := range []struct {
		from, to *stand
		addr     string
	}{{a, c, "203.0.113.2"}, {c, a, "203.0.113.1"}} {
		if err := reach(t, tt.from.open(), tt.to.open(), tt.addr); err != nil {
			t.Errorf("from %s to %s: %v", tt.from.name, tt.addr, err)
		}
	}
	if err := reach(t, b.host, a.open(), "203.0.113.1"); err != nil {
		t.Errorf("from the network to a: %v", err)
	}
	if err := reach(t, a.open(), b.host, "203.0.113.3"); err != nil {
		t.Errorf("from a to the network: %v", err)
	}
	a.undo(as)
	if _, err := netif.Read(a.ns, "eth0"); err == nil {
		t.Error("the link is left in the node")
	}
	c.kill()
	c.undo(cs)
}

func TestMacvlanUndoAfterBegin(t *testing.T) {
	b := newLab(t)
	b.adapter("eth0")
	a := b.node("a")
	steps := a.steps(vnode.Network{Mode: vnode.Macvlan, Parent: "eth0"})
	m := steps[0].(*Macvlan)
	testkit.Must(b.t, m.Prepare(context.Background()))
	a.undo(steps)

	// Killed before it named the link.
	testkit.Must(b.t, m.Do(context.Background()))
	r, err := m.Open()
	testkit.Must(b.t, err)
	l, err := m.Link(r)
	testkit.Must(b.t, err)
	testkit.Must(b.t, r.LinkSetName(l, m.Temp))
	a.undo(steps)
	if l, err := netif.ByName(r.Handle, m.Temp); err != nil || l != nil {
		t.Errorf("left: %v %v", l, err)
	}
	r.Close()
}

func TestMacvlanMACInUse(t *testing.T) {
	b := newLab(t)
	b.adapter("eth0")
	a := b.node("a")
	m := &Macvlan{Inside: netif.Inside{NS: a.ns, If: "eth0"}, MAC: mac.Must(adapterMAC), MTU: 1400, Parent: "eth0", Temp: "tmp0"}
	if err := do([]step.Step{m, &address.Configure{Inside: m.Inside}}); refuse.KindOf(err) != refuse.Busy {
		t.Errorf("the parent's own MAC: %v", err)
	}
}
