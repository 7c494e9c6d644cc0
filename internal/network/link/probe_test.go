package link

import (
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"berth/internal/host/netif"
	"berth/internal/network/address"
	"berth/internal/spec/vnode"
	"berth/internal/sys/mac"
	"berth/internal/sys/refuse"
	"berth/internal/sys/step"
	"berth/test/testkit"
)

// TestProbe gives nodes on a bridge of the host free addresses, and addresses that the host and another node have.
func TestProbe(t *testing.T) {
	b := newLab(t)
	hostMAC := mac.Must("02:00:5e:00:00:99")
	b.need(&netlink.Bridge{LinkAttrs: netif.Attrs("br9", 0, hostMAC)})
	testkit.Must(b.t, b.h.LinkSetUp(b.get("br9")))
	for _, cidr := range []string{"192.0.2.1/24", "2001:db8::1/64"} {
		ad, err := netlink.ParseAddr(cidr)
		testkit.Must(b.t, err)
		ad.Flags = unix.IFA_F_NODAD
		testkit.Must(b.t, b.h.AddrAdd(b.get("br9"), ad))
	}
	a := b.node("a")
	as := a.steps(vnode.Network{Mode: vnode.Bridge, Parent: "br9", Address: []string{"192.0.2.10/24", "2001:db8::10/64"}})
	start := time.Now()
	a.do(as)
	t.Logf("free addresses: %s", time.Since(start))
	aMAC := address.DeriveMAC("site", "a", "eth0", 0).String()
	for addr, who := range map[string]string{
		"192.0.2.1/24": hostMAC.String(), "2001:db8::1/64": hostMAC.String(),
		"192.0.2.10/24": aMAC, "2001:db8::10/64": aMAC,
	} {
		c := b.node("c")
		cs := c.steps(vnode.Network{Mode: vnode.Bridge, Parent: "br9", Address: []string{"192.0.2.77/24", addr}})
		err := do(cs)
		ip, _, _ := strings.Cut(addr, "/")
		if refuse.KindOf(err) != refuse.Busy || !strings.Contains(err.Error(), "address "+ip+" of eth0 is in use on its network by "+who) {
			t.Errorf("%s, which %s has: %v", addr, who, err)
		}
		c.undo(cs)
		if got := b.links(); len(got) != 2 {
			t.Errorf("left: %v", got)
		}
		c.kill()
	}
	// No carrier: the other end of the wire is down.
	b.need(&netlink.Veth{LinkAttrs: netif.Attrs("dead0", 0, mac.Address{}), PeerName: "dead0p"})
	p := b.node("p")
	ps := p.steps(vnode.Network{Mode: vnode.Phys, Parent: "dead0", Address: []string{"192.0.2.10/24"}})
	for _, s := range ps {
		if pr, ok := s.(*address.Probe); ok {
			pr.Adapter = false // else it waits for seconds
		}
	}
	p.do(ps)
	p.undo(ps)
}

// TestTwoProbesMeet starts two probes for one address at once: at most one may succeed.
func TestTwoProbesMeet(t *testing.T) {
	b := newLab(t)
	b.need(&netlink.Bridge{LinkAttrs: netif.Attrs("br9", 0, mac.Address{})})
	testkit.Must(b.t, b.h.LinkSetUp(b.get("br9")))
	nw := vnode.Network{Mode: vnode.Bridge, Parent: "br9", Address: []string{"192.0.2.10/24"}}
	won := make(chan error, 2)
	for _, name := range []string{"a", "c"} {
		s := b.node(name)
		steps := s.steps(nw)
		var probe step.Step
		for _, st := range steps {
			if st.Kind() == "link.probe" {
				probe = st
				break
			}
			s.do([]step.Step{st})
		}
		go func() { won <- do([]step.Step{probe}) }()
	}
	first, second := <-won, <-won
	if first == nil && second == nil {
		t.Error("both got the address")
	}
	t.Logf("%v; %v", first, second)
}

func TestClaimAddress(t *testing.T) {
	b := newLab(t)
	a, c := b.node("a"), b.node("c")
	nw := vnode.Network{Mode: vnode.Bridge, Address: []string{"192.0.2.10/24", "2001:db8::a/64"}}
	a.do(a.steps(nw))
	for _, addr := range []string{"192.0.2.10/16", "2001:DB8:0::A/64"} {
		_, err := c.plan(vnode.Network{Mode: vnode.Bridge, Address: []string{addr}})
		if refuse.KindOf(err) != refuse.Busy || !strings.Contains(err.Error(), "is taken by node a/eth0") {
			t.Errorf("%s: %v", addr, err)
		}
	}
	claim := &address.ClaimAddress{Dir: b.dir + "/addresses", Node: "c", If: "eth0", Address: "192.0.2.10"}
	testkit.Must(b.t, undo([]step.Step{claim})) // another node's claim stays
	if err := do([]step.Step{claim}); refuse.KindOf(err) != refuse.Busy {
		t.Error(err)
	}
	claim.Node = "a"
	testkit.Must(b.t, do([]step.Step{claim})) // a repeated claim succeeds
	testkit.Must(b.t, undo([]step.Step{claim}))
	claim.Node = "c"
	testkit.Must(b.t, do([]step.Step{claim}))
}
