package link

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"berth/internal/host/netif"
	"berth/internal/network/address"
	"berth/internal/network/antispoof"
	"berth/internal/network/dhcp"
	"berth/internal/spec/vnode"
	"berth/internal/sys/step"
	"berth/test/testkit"
)

// frames returns frames that a node tries to send, by description.
func frames(mac net.HardwareAddr, own, other string) map[string][]byte {
	arp := func(sender net.HardwareAddr, from string) []byte {
		f := append(bytes.Repeat([]byte{0xff}, 6), mac...)
		f = append(f, 8, 6, 0, 1, 8, 0, 6, 4, 0, 2)
		f = append(f, sender...)
		f = append(append(f, net.ParseIP(from).To4()...), make([]byte, 10)...)
		return append(f, make([]byte, 18)...)
	}
	stranger := net.HardwareAddr{2, 0, 0x5e, 9, 9, 9}
	changed := arp(mac, own)
	copy(changed[6:], stranger)
	offer := append(bytes.Repeat([]byte{0xff}, 6), mac...)
	offer = append(offer, 8, 0, 0x45, 0, 0, 28, 0, 0, 0, 0, 64, 17, 0, 0)
	offer = append(append(offer, net.ParseIP(own).To4()...), 255, 255, 255, 255, 0, 67, 0, 68, 0, 8, 0, 0)
	sum := uint32(0)
	for i := 14; i < 34; i += 2 {
		sum += uint32(offer[i])<<8 | uint32(offer[i+1])
	}
	sum = ^(sum&0xffff + sum>>16)
	offer[24], offer[25] = byte(sum>>8), byte(sum) // bridges check it
	return map[string][]byte{
		"own": arp(mac, own), "another's address": arp(mac, other), "another's MAC in ARP": arp(stranger, own),
		"another's MAC": changed, "DHCP offer": offer,
	}
}

// tap returns a packet socket on a link of a namespace; nil is the lab's host.
func (b *lab) tap(ns *os.File, ifname string) int {
	b.t.Helper()
	fd := -1
	open := func() error {
		l, err := net.InterfaceByName(ifname)
		if err != nil {
			return err
		}
		if fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0); err != nil {
			return err
		}
		return unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: htons(unix.ETH_P_ALL), Ifindex: l.Index})
	}
	if ns == nil {
		ns = b.host
	}
	testkit.Must(b.t, in(ns, open))
	b.t.Cleanup(func() { unix.Close(fd) })
	return fd
}

// passed returns which frames pass from one socket to the other. The frame last must always pass.
func passed(t *testing.T, from, to int, all map[string][]byte, last []byte) map[string]bool {
	t.Helper()
	testkit.Eventually(t, "a frame arrives: the links have a carrier", func() bool {
		if err := unix.Send(from, append(bytes.Clone(last), 1), 0); err != nil && !errors.Is(err, unix.ENOBUFS) {
			t.Fatal(err)
		}
		return heard(t, to, append(bytes.Clone(last), 1), 20*time.Millisecond, nil)
	})
	for what, f := range all {
		if err := unix.Send(from, f, 0); err != nil && !errors.Is(err, unix.ENOBUFS) { // ENOBUFS reports a drop
			t.Fatalf("%s: %v", what, err)
		}
	}
	if err := unix.Send(from, append(bytes.Clone(last), 2), 0); err != nil {
		t.Fatal(err)
	}
	got := map[string]bool{}
	if !heard(t, to, append(bytes.Clone(last), 2), testkit.Bound(), func(f []byte) {
		for what, sent := range all {
			if bytes.Equal(f, sent) {
				got[what] = true
			}
		}
	}) {
		t.Fatal("the last frame did not arrive")
	}
	return got
}

// heard reads frames until it sees last, or until the time is over.
func heard(t *testing.T, fd int, last []byte, wait time.Duration, each func([]byte)) bool {
	t.Helper()
	buf := make([]byte, 2048)
	for end := time.Now().Add(wait); time.Now().Before(end); {
		n, _, err := unix.Recvfrom(fd, buf, 0)
		switch {
		case errors.Is(err, unix.EAGAIN):
			time.Sleep(time.Millisecond)
		case err != nil:
			t.Fatal(err)
		case bytes.Equal(buf[:n], last):
			return true
		case each != nil:
			each(buf[:n])
		}
	}
	return false
}

// TestAntiSpoof checks in every mode, beside rates, that only frames from the node's own addresses pass, that the check
// is read back, and that a lent link comes home without it.
func TestAntiSpoof(t *testing.T) {
	b := newLab(t)
	b.needShaping(netif.Egress, netif.Peer, netif.Ingress)
	nets := b.networks()
	nets["free"] = vnode.Network{Mode: vnode.Bridge, Spoof: true}
	for mode, nw := range nets {
		own := map[bool]string{true: "192.0.2.12", false: "192.0.2.10"}[mode == "free"]
		nw.Address, nw.Rate = []string{own + "/24"}, vnode.NetRate{TX: 100 * mbit, RX: 100 * mbit}
		s, to := b.node(mode), -1
		steps := s.steps(nw)
		s.do(steps)
		switch mode {
		case "bridge", "free":
			other := b.node(mode + "-other")
			other.do(other.steps(vnode.Network{}))
			to = b.tap(other.open(), "eth0")
		case "macvlan":
			to = b.tap(nil, "up0p")
		case "phys":
			to = b.tap(nil, "lent0p")
		}
		st, err := netif.Read(s.ns, "eth0")
		testkit.Must(b.t, err)

		all := frames(st.MAC.HardwareAddr(), own, "192.0.2.11")
		last := bytes.Clone(all["own"])
		want := map[string]bool{"own": true}
		if mode == "free" {
			for what := range all {
				want[what] = true
			}
		}
		if got := passed(t, b.tap(s.open(), "eth0"), to, all, last); fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("%s: passed %v, want %v", mode, got, want)
		}
		for _, r := range rateSteps(steps) {
			if err := r.Verify(context.Background()); err != nil {
				t.Errorf("%s: %v", mode, err)
			}
		}
		for _, c := range steps {
			a, ok := c.(*antispoof.Step)
			if !ok {
				continue
			}
			testkit.Must(b.t, a.At(func(h *netlink.Handle, on, _ netlink.Link) error {
				q := &netlink.Clsact{QdiscAttrs: netlink.QdiscAttrs{LinkIndex: on.Attrs().Index, Parent: netlink.HANDLE_CLSACT, Handle: netlink.MakeHandle(0xffff, 0)}}
				return h.QdiscDel(q)
			}))
			if err := a.Verify(context.Background()); err == nil || !strings.Contains(err.Error(), "the spoof check is not there") {
				t.Errorf("%s: without the check: %v", mode, err)
			}
			testkit.Must(b.t, a.Do(context.Background()))
			testkit.Must(b.t, a.Verify(context.Background()))
		}
		s.undo(steps)
		if mode == "phys" {
			if got := qdiscs(t, b.h, b.get("lent0")); strings.Contains(got, "clsact") {
				t.Errorf("the lent link came home with %q", got)
			}
		}
		s.kill()
	}
}

// TestAntiSpoofFollowsTheLease checks that a leased address passes from when it is set until it is dropped.
func TestAntiSpoofFollowsTheLease(t *testing.T) {
	b := newLab(t)
	s, other := b.node("a"), b.node("c")
	steps := s.steps(vnode.Network{DHCP: true})
	var d *address.DHCP
	for _, c := range steps {
		if got, ok := c.(*address.DHCP); ok {
			d = got
			break
		}
		s.do([]step.Step{c})
	}
	testkit.Must(b.t, d.Prepare(context.Background()))
	defer s.undo(steps)
	other.do(other.steps(vnode.Network{}))
	from, to := b.tap(s.open(), "eth0"), b.tap(other.open(), "eth0")
	st, err := netif.Read(s.ns, "eth0")
	testkit.Must(b.t, err)

	probe := bytes.Clone(frames(st.MAC.HardwareAddr(), "0.0.0.0", "")["own"]) // a probe always passes
	for _, c := range []struct {
		do   func() error
		want string
	}{
		{func() error { return nil }, "map[]"},
		{func() error { return d.Take(context.Background(), lease("192.0.2.50/24")) }, "map[50:true]"},
		{func() error { return d.Take(context.Background(), lease("192.0.2.51/24")) }, "map[51:true]"},
		{d.Drop, "map[]"},
	} {
		testkit.Must(b.t, c.do())
		all := map[string][]byte{"50": frames(st.MAC.HardwareAddr(), "192.0.2.50", "")["own"], "51": frames(st.MAC.HardwareAddr(), "192.0.2.51", "")["own"]}
		if got := passed(t, from, to, all, probe); fmt.Sprint(got) != c.want {
			t.Errorf("passed %v, want %s", got, c.want)
		}
		for _, c := range steps {
			if a, ok := c.(*antispoof.Step); ok {
				if err := a.Verify(context.Background()); err != nil {
					t.Error(err)
				}
			}
		}
	}
}

func lease(address string) dhcp.Lease {
	return dhcp.Lease{Address: netip.MustParsePrefix(address), Seconds: 600, T1: 300, T2: 500, Obtained: dhcp.Now()}
}
