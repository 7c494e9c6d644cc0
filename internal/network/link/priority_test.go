package link

import (
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"berth/internal/host/netif"
	"berth/internal/network/shape"
	"berth/internal/spec/vnode"
	"berth/internal/sys/mac"
	"berth/internal/sys/proof"
	"berth/internal/sys/refuse"
	"berth/internal/sys/step"
	"berth/test/testkit"
)

// uplink makes "up", a stand-in for an adapter of 20 Mbit/s with a queue of a kind ("": one that ignores priorities),
// and a bridge "br" with "up" as port. It returns the node behind the adapter.
func (b *lab) uplink(queue string) *stand {
	b.t.Helper()
	const wire = "wire"
	behind := b.node(wire)
	b.need(&netlink.Bridge{LinkAttrs: netif.Attrs("br", 0, mac.Address{})})
	up := &netlink.Veth{LinkAttrs: netif.Attrs("up", 0, mac.Address{}), PeerName: wire, PeerNamespace: netlink.NsPid(behind.cmd.Process.Pid)}
	b.need(up)
	testkit.Must(b.t, b.h.LinkSetMaster(b.get("up"), b.get("br")))
	for _, name := range []string{"br", "up"} {
		testkit.Must(b.t, b.h.LinkSetUp(b.get(name)))
	}
	h, err := netif.At(behind.open())
	testkit.Must(b.t, err)
	defer h.Close()
	l, err := h.LinkByName(wire)
	testkit.Must(b.t, err)
	addr, err := netlink.ParseAddr("192.0.2.1/24")
	testkit.Must(b.t, err)
	testkit.Must(b.t, h.AddrAdd(l, addr))
	testkit.Must(b.t, h.LinkSetUp(l))
	at := netlink.QdiscAttrs{LinkIndex: b.get("up").Attrs().Index, Parent: netlink.HANDLE_ROOT, Handle: netlink.MakeHandle(1, 0)}
	testkit.Must(b.t, b.h.QdiscAdd(&netlink.Tbf{QdiscAttrs: at, Rate: 20e6 / 8, Limit: 1 << 20, Buffer: 1 << 20}))
	if queue != "" {
		at.Parent, at.Handle = netlink.MakeHandle(1, 1), netlink.MakeHandle(2, 0)
		if err := b.h.QdiscReplace(&netlink.GenericQdisc{QdiscAttrs: at, QdiscType: queue}); err != nil {
			b.t.Skipf("needs qdisc %s: %v", queue, err)
		}
	}
	return behind
}

// TestPriority lets two nodes send all they can through one adapter. Equal nodes share it. A high node beside a low one
// gets more, whatever priority the low node's sockets ask for: nearly everything where a run measures.
func TestPriority(t *testing.T) {
	if testing.Short() {
		t.Skip("needs time: 2 s a flow")
	}
	b := newLab(t)
	behind := b.uplink("pfifo_fast")
	least := .5
	if testkit.Measures() {
		least = .95
	}
	for _, nw := range []vnode.Network{{Mode: vnode.Bridge, Parent: "br"}, {Mode: vnode.Macvlan, Parent: "up"}} {
		if nw.Mode == vnode.Macvlan {
			testkit.Must(b.t, b.h.LinkSetNoMaster(b.get("up")))
		}
		if testkit.Measures() { // elsewhere each share is right
			if s := b.share(behind, nw, vnode.Normal, vnode.Normal); s < .02 || s > .98 {
				t.Errorf("%s: equals got %.2f and %.2f", nw.Mode, s, 1-s)
			}
		}
		if s := b.share(behind, nw, vnode.High, vnode.Low); s < least {
			t.Errorf("%s: high beside low got %.2f", nw.Mode, s)
		}
		if s := b.share(behind, nw, vnode.Low, vnode.Normal); s > 1-least {
			t.Errorf("%s: low beside normal got %.2f", nw.Mode, s)
		}
	}
}

// share returns the first node's share of what both nodes send. The low node's sockets ask for the highest priority
// that they may.
func (b *lab) share(behind *stand, nw vnode.Network, first, second vnode.Priority) float64 {
	b.t.Helper()
	var flows []*flow
	for i, p := range []vnode.Priority{first, second} {
		s := b.node([]string{"a-", "b-"}[i] + string(p))
		nw.Priority, nw.Address = p, []string{[]string{"192.0.2.10/24", "192.0.2.11/24"}[i]}
		steps := s.steps(nw)
		s.do(steps)
		defer s.undo(steps)
		f := connect(b.t, s.open(), behind.open(), "192.0.2.1") // a low node cannot ask for an address while a high one sends all it can
		defer f.from.Close()
		if p == vnode.Low {
			c, err := f.from.(syscall.Conn).SyscallConn()
			testkit.Must(b.t, err)
			testkit.Must(b.t, c.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_PRIORITY, 6) }))
			testkit.Must(b.t, err)
		}
		flows = append(flows, f)
	}
	for _, f := range flows {
		go f.send()
	}
	time.Sleep(500 * time.Millisecond)
	before := flows[1].got.Load()
	window := 800 * time.Millisecond
	if testkit.Measures() {
		window = 2 * time.Second
	}
	got := flows[0].rate(window)
	other := float64(flows[1].got.Load()-before) * 8 / window.Seconds()
	b.t.Logf("%s: %s %.2f Mbit/s beside %s %.2f", nw.Mode, first, got/1e6, second, other/1e6)
	return got / (got + other)
}

// TestPriorityHonoured checks that the queue is found and the priority read back, and that a useless priority is
// refused.
func TestPriorityHonoured(t *testing.T) {
	b := newLab(t)
	b.uplink("pfifo_fast")
	s := b.node("a")
	nw := vnode.Network{Name: "eth0", Mode: vnode.Bridge, Parent: "br", Priority: vnode.Low, Rate: vnode.NetRate{RX: 10 * mbit}}
	steps := s.steps(nw)
	s.do(steps)
	var p *shape.Priority
	for _, st := range steps {
		if one, ok := st.(*shape.Priority); ok {
			p = one
		}
	}
	if p == nil || p.String() != "net.eth0.priority low by cls_bpf on the host's end" {
		t.Fatalf("%v", p)
	}
	show := func(class vnode.Priority, n vnode.Network, running bool) proof.Limit {
		t.Helper()
		facts, err := ReadFacts([]vnode.Network{n}, class, "")
		testkit.Must(b.t, err)
		all := ShowPriorities(Input{Networks: []vnode.Network{n}, Priority: class, NS: s.ns, Facts: facts}, running)
		if len(all) != 1 {
			t.Fatalf("%+v", all)
		}
		return all[0]
	}
	want := proof.Limit{Key: "net.eth0.priority", Asked: "low", ReadBack: "low", By: "pfifo_fast on up", Holds: true}
	if d := cmp.Diff(want, show("", nw, true)); d != "" {
		t.Error(d)
	}
	s.undo(steps)

	// No queue honours it: a priority of the class is left out and shown, one of the spec is refused.
	testkit.Must(b.t, b.h.QdiscDel(&netlink.GenericQdisc{QdiscType: "pfifo_fast", QdiscAttrs: netlink.QdiscAttrs{
		LinkIndex: b.get("up").Attrs().Index, Parent: netlink.MakeHandle(1, 1), Handle: netlink.MakeHandle(2, 0),
	}}))
	for _, n := range []vnode.Network{nw, {Mode: vnode.Bridge, Priority: vnode.High}} {
		if _, err := s.plan(n); refuse.KindOf(err) != refuse.Cannot {
			t.Errorf("%+v: %v", n, err)
		}
	}
	nw.Priority = ""
	want = proof.Limit{Key: "net.eth0.priority", Asked: "high", By: "nothing here", Note: "from the node's class; no queue behind br looks at priorities"}
	if d := cmp.Diff(want, show(vnode.High, nw, false)); d != "" {
		t.Error(d)
	}
}

// TestPriorityBesideIngress puts the filters of sent and received packets on the same qdisc.
func TestPriorityBesideIngress(t *testing.T) {
	b := newLab(t)
	b.needShaping(netif.Ingress)
	b.uplink("")
	s := b.node("a")
	r := &shape.Rate{Inside: netif.Inside{NS: s.ns, If: "lo"}, Limit: proof.Limit{Key: "net.lo.rx", Asked: "10Mbit/s"}, Bits: 10 * mbit, Way: netif.Ingress}
	p := &shape.Priority{Inside: netif.Inside{NS: s.ns, If: "lo"}, Asked: vnode.High, Way: netif.Egress}
	testkit.Must(b.t, do([]step.Step{p, r}))
	testkit.Must(b.t, p.Verify(t.Context()))
	testkit.Must(b.t, p.Verify(t.Context()))
	c := &shape.RateChange{Rate: *r}
	c.Bits, c.Asked = 0, vnode.Max
	testkit.Must(b.t, do([]step.Step{c}))
	testkit.Must(b.t, p.Verify(t.Context()))
	if now, err := r.Read(); err != nil || now != 0 {
		t.Errorf("rate %v, %v", now, err)
	}
}
