package link

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strconv"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/vishvananda/netlink"

	"berth/internal/host/netif"
	"berth/internal/network/address"
	"berth/internal/spec/vnode"
	"berth/internal/sys/mac"
	"berth/internal/sys/refuse"
	"berth/internal/sys/step"
	"berth/test/testkit"
)

func TestBridgeNodesReachEachOther(t *testing.T) {
	b := newLab(t)
	a, c := b.node("a"), b.node("c")
	as := a.steps(vnode.Network{Mode: vnode.Bridge, Address: []string{"192.0.2.10/24", "2001:db8::10/64"}, Gateway: "192.0.2.1", Routes: []vnode.Route{{To: "198.51.100.0/24", Via: "192.0.2.2"}, {To: "2001:db8:1::/48", Via: "2001:db8::2"}}, MTU: 9000})
	cs := c.steps(vnode.Network{Mode: vnode.Bridge, Address: []string{"192.0.2.11/24", "2001:db8::11/64"}, Gateway: "2001:db8::1"})
	a.do(as)
	c.do(cs)
	for _, addr := range []string{"192.0.2.11", "2001:db8::11"} { // usable at once: no duplicate address detection
		if err := reach(t, a.open(), c.open(), addr); err != nil {
			t.Errorf("from a to %s: %v", addr, err)
		}
	}
	got, err := netif.Read(a.ns, "eth0")
	if err != nil {
		t.Fatal(err)
	}
	want := netif.State{Name: "eth0", Type: "veth", MAC: address.DeriveMAC("site", "a", "eth0", 0), MTU: 9000, Up: true, Carrier: true, Address: []string{"192.0.2.10/24", "2001:db8::10/64"}}
	if d := cmp.Diff(want, got, cmpopts.EquateComparable(mac.Address{})); d != "" {
		t.Error(d)
	}
	if got := b.linksOf(b.h); len(got) > 0 {
		t.Errorf("the host sees %v", got)
	}
	a.undo(as)
	if got := len(b.links()); got < 2 { // some kernels add tunnels to each namespace
		t.Errorf("links after the first node: %v", b.links())
	}
	c.kill()
	c.undo(cs)
	if got := b.links(); len(got) > 0 {
		t.Errorf("left: %v", got)
	}
}

func TestBridgeOfTheHost(t *testing.T) {
	b := newLab(t)
	b.need(&netlink.Bridge{LinkAttrs: netif.Attrs("br9", 9000, mac.Address{})})
	a := b.node("a")
	steps := a.steps(vnode.Network{Mode: vnode.Bridge, Parent: "br9", MTU: 1400})
	a.do(steps)
	if mtu := b.get("br9").Attrs().MTU; mtu != 9000 {
		t.Errorf("MTU of the host's bridge is now %d", mtu)
	}
	a.undo(steps)
	if d := cmp.Diff([]string{"br9"}, b.links()); d != "" {
		t.Error(d)
	}
}

func TestManyNodesOnOneBridge(t *testing.T) {
	b := newLab(t)
	const many = 20
	nodes := make([]*stand, many)
	plans := make([][]step.Step, many)
	for i := range nodes {
		nodes[i] = b.node("n" + strconv.Itoa(i))
		plans[i] = nodes[i].steps(vnode.Network{Mode: vnode.Bridge, Address: []string{"192.0.2." + strconv.Itoa(i+1) + "/24"}})
	}
	each := func(f func(i int) error) {
		t.Helper()
		var wg sync.WaitGroup
		for i := range many {
			wg.Go(func() {
				if err := b.inside(func() error { return f(i) }); err != nil {
					t.Errorf("node %d: %v", i, err)
				}
			})
		}
		wg.Wait()
	}
	each(func(i int) error { return do(plans[i]) })
	if err := reach(t, nodes[0].open(), nodes[many-1].open(), "192.0.2."+strconv.Itoa(many)); err != nil {
		t.Error(err)
	}
	// Half of them end while the others start again and again: nobody removes the bridge too early.
	each(func(i int) error {
		for range 3 {
			if err := undo(plans[i]); err != nil {
				return err
			}
			if i%2 == 0 {
				if err := do(plans[i]); err != nil {
					return err
				}
			}
		}
		return undo(plans[i])
	})
	if got := b.links(); len(got) > 0 {
		t.Errorf("left: %v", got)
	}
}

func TestVethUndoAfterBegin(t *testing.T) {
	b := newLab(t)
	a := b.node("a")
	steps := a.steps(vnode.Network{Mode: vnode.Bridge})
	v := steps[1].(*Veth)
	if err := v.Prepare(context.Background()); err != nil {
		t.Fatal(err)
	}
	a.undo(steps) // nothing was done

	// Killed inside Do: the link exists, but its index is not journalled.
	if err := v.Do(context.Background()); err != nil {
		t.Fatal(err)
	}
	v.Index = 0
	a.undo(steps)
	if got := b.links(); len(got) > 0 {
		t.Errorf("left: %v", got)
	}

	// A foreign link with the same name stays, and keeps the namespace.
	h, err := b.hub().Ensure()
	testkit.Must(b.t, err)
	defer h.Close()
	testkit.Must(b.t, h.LinkAdd(&netlink.Veth{LinkAttrs: netif.Attrs(v.HostIf, 0, mac.Address{}), PeerName: "x", PeerTxQLen: -1}))
	a.undo(steps)
	if got := b.links(); len(got) != 2 {
		t.Errorf("another's link was removed: %v", got)
	}
	if err := v.Do(context.Background()); refuse.KindOf(err) != refuse.Busy {
		t.Errorf("a name that is taken: %v", err)
	}
}

func TestBridgeOfAnotherStays(t *testing.T) {
	b := newLab(t)
	b.need(&netlink.Bridge{LinkAttrs: netif.Attrs("berthtest", 0, mac.Address{})}) // a bridge on the host does not clash with the one in the hub
	a := b.node("a")
	steps := a.steps(vnode.Network{Mode: vnode.Bridge})
	a.do(steps)
	a.undo(steps)
	b.get("berthtest")
	if got := b.links(); len(got) != 1 {
		t.Errorf("left: %v", got)
	}
}

func TestNamespaceOfAnother(t *testing.T) {
	b := newLab(t)
	a, c := b.node("a"), b.node("c")
	if err := os.WriteFile(a.ns.PIDFile, []byte(strconv.Itoa(os.Getpid())), 0o600); err != nil {
		t.Fatal(err)
	}
	// The main thread of the process is in the real host's namespace; here the lab's namespace is the host's.
	own := netif.NS{PIDFile: a.ns.PIDFile, Pin: netif.Self}
	if _, err := own.Open(); err == nil {
		t.Error("the host's own namespace was opened as a node's")
	}
	in := netif.Inside{NS: c.ns, If: "lo"}
	if err := in.Prepare(context.Background()); err != nil {
		t.Fatal(err)
	}
	other := b.node("d")
	in.NS = other.ns // as if another namespace had got the pid
	if _, err := in.Open(); !netif.Absent(err) {
		t.Errorf("another's namespace was entered: %v", err)
	}
	c.kill()
	in.NS = c.ns
	if _, err := in.Open(); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a dead node's namespace: %v", err)
	}
}

func BenchmarkVeth(bm *testing.B) {
	b := newLab(bm)
	keep := b.node("keep") // keeps the bridge
	keep.do(keep.steps(vnode.Network{Mode: vnode.Bridge}))
	node := func() (*stand, []step.Step) {
		a := b.node("a")
		return a, a.steps(vnode.Network{Mode: vnode.Bridge, Address: []string{"192.0.2.10/24"}, Gateway: "192.0.2.1"})
	}
	back := func(steps []step.Step) {
		for _, s := range slices.Backward(steps) {
			testkit.Must(b.t, s.Undo(context.Background()))
		}
	}
	bm.Run("do", func(bm *testing.B) {
		a, steps := node()
		for bm.Loop() {
			a.do(steps)
			bm.StopTimer()
			back(steps)
			bm.StartTimer()
		}
	})
	for _, alive := range []bool{true, false} {
		bm.Run(fmt.Sprintf("undo/alive=%v", alive), func(bm *testing.B) {
			for bm.Loop() {
				bm.StopTimer()
				a, steps := node()
				a.do(steps)
				if !alive {
					a.kill()
				}
				bm.StartTimer()
				back(steps)
				bm.StopTimer()
				a.kill()
				bm.StartTimer()
			}
		})
	}
}
