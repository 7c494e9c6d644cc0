package link

import (
	"context"
	"errors"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
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

const adapterMAC = "02:00:5e:10:00:01"

// adapter makes a link on the lab's host that stands for a real adapter: one end of a veth pair (its other end, "wire",
// stays), with settings that must all come home.
func (b *lab) adapter(name string) netif.Original {
	b.t.Helper()
	b.need(&netlink.Veth{LinkAttrs: netif.Attrs(name, 1400, mac.Must(adapterMAC)), PeerName: "wire", PeerTxQLen: -1})
	l := b.get(name)
	testkit.Must(b.t, b.h.LinkAddAltName(l, "an-alternative-name"))
	for _, a := range []string{"192.0.2.5/24", "198.51.100.5/32", "2001:db8::5/64"} {
		addr, err := netlink.ParseAddr(a)
		testkit.Must(b.t, err)
		if addr.IP.To4() == nil {
			addr.Flags = unix.IFA_F_NODAD
		}
		testkit.Must(b.t, b.h.AddrAdd(l, addr))
	}
	testkit.Must(b.t, b.h.LinkSetUp(l))
	testkit.Must(b.t, b.h.LinkSetUp(b.get("wire")))
	return b.now(name)
}

// now returns the state of a host link as an Original, without fields that a move may change.
func (b *lab) now(name string) netif.Original {
	b.t.Helper()
	o, err := netif.Record(b.h, b.get(name))
	testkit.Must(b.t, err)
	o.Index = 0
	kept := o.Address[:0]
	for _, a := range o.Address {
		if !strings.HasPrefix(a.CIDR, "fe80:") { // made by the kernel
			kept = append(kept, a)
		}
	}
	o.Address = kept
	return o
}

func lend() vnode.Network {
	return vnode.Network{Mode: vnode.Phys, Parent: "eth0", Name: "data0", MAC: "02:00:5e:10:00:99", MTU: 1300, Address: []string{"192.0.2.77/24"}}
}

func TestLentLinkComesHome(t *testing.T) {
	tests := []struct {
		name string
		end  func(s *stand)
	}{
		{"node stops", func(*stand) {}},
		{"init is killed", (*stand).kill},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			b := newLab(t)
			want := b.adapter("eth0")
			a := b.node("a")
			steps := a.steps(lend())
			a.do(steps)
			if _, err := b.h.LinkByName("eth0"); err == nil {
				t.Fatal("the link is still on the host")
			}
			tt.end(a)
			got, err := netif.Read(a.ns, "data0")
			if err != nil {
				t.Fatal(err)
			}
			inside := netif.State{Name: "data0", Type: "veth", MAC: mac.Must("02:00:5e:10:00:99"), MTU: 1300, Up: true, Carrier: true, Address: []string{"192.0.2.77/24"}}
			if d := cmp.Diff(inside, got, cmpopts.EquateComparable(mac.Address{})); d != "" {
				t.Error(d)
			}
			a.undo(steps)
			if d := cmp.Diff(want, b.now("eth0"), cmpopts.EquateComparable(mac.Address{})); d != "" {
				t.Error(d)
			}
			if _, err := os.Lstat(a.ns.Pin); !errors.Is(err, os.ErrNotExist) {
				t.Errorf("the pin is left: %v", err)
			}
		})
	}
}

// TestLentLinkEveryPoint stops after each part of lending and undoes from the record that was written before Do.
func TestLentLinkEveryPoint(t *testing.T) {
	parts := []struct {
		name string
		do   func(b *lab, p *Phys, r *netif.Socket) error
	}{
		{"begin", func(*lab, *Phys, *netif.Socket) error { return nil }},
		{"names off", func(b *lab, _ *Phys, _ *netif.Socket) error {
			return b.h.LinkDelAltName(b.get("eth0"), "an-alternative-name")
		}},
		{"moved", func(_ *lab, p *Phys, r *netif.Socket) error { return p.lend(r) }},
		{"MAC set", func(_ *lab, p *Phys, r *netif.Socket) error {
			l, err := p.Link(r)
			if err != nil {
				return err
			}
			return netif.Set(r.Handle, l, p.MAC, 0)
		}},
		{"configured", func(_ *lab, p *Phys, _ *netif.Socket) error {
			return (&address.Configure{Inside: p.Inside, Address: []string{"192.0.2.77/24"}}).Do(context.Background())
		}},
	}
	for stop := range parts {
		t.Run(parts[stop].name, func(t *testing.T) {
			b := newLab(t)
			want := b.adapter("eth0")
			a := b.node("a")
			steps := a.steps(lend())
			pin, p := steps[0].(*netif.Pin), steps[1].(*Phys)
			a.do([]step.Step{pin})
			testkit.Must(b.t, p.Prepare(context.Background()))
			r, err := p.Open()
			testkit.Must(b.t, err)
			for _, part := range parts[:stop+1] {
				testkit.Must(b.t, part.do(b, p, r))
			}
			r.Close()
			a.kill()
			a.undo(steps)
			if d := cmp.Diff(want, b.now("eth0"), cmpopts.EquateComparable(mac.Address{})); d != "" {
				t.Error(d)
			}
		})
	}
}

// TestLentNamesClash swaps names: the node's eth0 is the host's eth1, and the host's eth0 the node's eth1. Another link
// takes the name before the link comes home.
func TestLentNamesClash(t *testing.T) {
	b := newLab(t)
	b.adapter("eth0")
	b.need(&netlink.Ifb{LinkAttrs: netif.Attrs("eth1", 0, mac.Address{})})
	a := b.node("a")
	steps := a.steps(
		vnode.Network{Mode: vnode.Phys, Parent: "eth1", Name: "eth0"},
		vnode.Network{Mode: vnode.Phys, Parent: "eth0", Name: "eth1"})
	a.do(steps)
	b.need(&netlink.Bridge{LinkAttrs: netif.Attrs("eth0", 0, mac.Address{})})
	if err := undo(steps); refuse.KindOf(err) != refuse.Busy {
		t.Errorf("the name is taken: %v", err)
	}
	if _, err := netif.Read(a.ns, "eth1"); err == nil {
		t.Error("the link stayed in the node because its name is taken")
	}
	testkit.Must(b.t, b.h.LinkDel(b.get("eth0")))
	a.undo(steps)
	if got := b.get("eth0"); got.Attrs().HardwareAddr.String() != adapterMAC {
		t.Errorf("eth0 is %s", got.Attrs().HardwareAddr)
	}
	if got := b.get("eth1").Type(); got != "ifb" {
		t.Errorf("eth1 is a %s", got)
	}
}

func TestLentLinkGone(t *testing.T) {
	b := newLab(t)
	b.adapter("eth0")
	a := b.node("a")
	steps := a.steps(lend())
	phys := []step.Step{steps[1]} // without the pin: a virtual link ends with the namespace
	a.do(phys)
	a.kill()
	a.undo(phys)
}

func TestLinkThatCannotMove(t *testing.T) {
	b := newLab(t)
	b.need(&netlink.Bridge{LinkAttrs: netif.Attrs("br9", 0, mac.Address{})})
	a := b.node("a")
	steps := []step.Step{&Phys{Inside: netif.Inside{NS: a.ns, If: "eth0"}, Parent: "br9", Lock: b.lock()}}
	if err := do(steps); refuse.KindOf(err) != refuse.Cannot {
		t.Errorf("a bridge cannot move: %v", err)
	}
	a.undo(steps)
}

func TestPinUndoAfterBegin(t *testing.T) {
	b := newLab(t)
	a, c := b.node("a"), b.node("c")
	pin := &netif.Pin{NS: a.ns}
	testkit.Must(b.t, pin.Prepare(context.Background()))
	a.undo([]step.Step{pin})
	testkit.Must(b.t, os.WriteFile(a.ns.Pin, nil, 0o600)) // killed between the file and the mount
	a.undo([]step.Step{pin})
	if _, err := os.Lstat(a.ns.Pin); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the file is left: %v", err)
	}
	// A pin of another namespace stays.
	other := &netif.Pin{NS: netif.NS{Pin: a.ns.Pin, PIDFile: c.ns.PIDFile}}
	a.do([]step.Step{other})
	a.undo([]step.Step{pin})
	testkit.Must(b.t, other.Verify(context.Background()))
	a.undo([]step.Step{other})
}
