package security

import (
	"bytes"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"berth/internal/sys/thread"
	"berth/test/testkit"
)

// TestSpoofing checks that packets with foreign addresses, of a DHCP server or of a router do not arrive at the neighbour. The same
// packets from a node with spoof: true arrive, which proves that the test would see them.
func TestSpoofing(t *testing.T) {
	// Attempts that the kernel already refuses in the node.
	refused := map[string]string{
		"freebind-4": "ENETUNREACH", "transparent-4": "EPERM", "transparent-6": "EPERM", "hopopts-6": "EPERM", "dstopts-6": "EPERM",
		"advertise-router": "EINVAL", "advertise-neighbour": "EINVAL", "redirect": "EINVAL",
	}
	forged := []string{"freebind-6", "freebind-6-all", "echo-6", "dhcp-offer", "dhcp-offer-to-one", "dhcp-request", "dhcp6-offer"}
	eachRuntime(t, func(t *testing.T, w *world) {
		neighbour := w.up(t, "network: [{address: [192.0.2.172/24, '2001:db8:7::172/64']}]")
		node := w.up(t, "network: [{address: [192.0.2.171/24, '2001:db8:7::171/64']}]")
		loose := w.up(t, "network: [{address: [192.0.2.173/24, '2001:db8:7::173/64'], spoof: true}]")
		free := w.up(t, "network: [{}]")
		ear := listen(t, w.show(t, neighbour).PID)
		args := []string{"spoof", "192.0.2.199", "2001:db8:7::199", "192.0.2.172", "2001:db8:7::172"}
		for _, c := range []struct {
			node   string
			arrive []string
		}{
			{node, []string{"own-4", "own-6"}},
			{loose, append([]string{"own-4", "own-6"}, forged...)},
			{free, []string{}},
		} {
			said := map[string]string{}
			w.in(t, c.node, &said, args...)
			for what, why := range refused {
				if said[what] != why && c.node != free {
					t.Errorf("%s: %s, not %s", what, said[what], why)
				}
			}
			got := ear(t)
			for _, what := range c.arrive {
				if !slices.ContainsFunc(got, func(f []byte) bool { return bytes.Contains(f, []byte(what)) }) {
					t.Errorf("%s, which the node sent (%s), did not arrive", what, said[what])
				}
			}
			if c.node == loose {
				continue
			}
			for _, f := range got {
				if c.node == node {
					if from, ok := source(f); ok && !slices.Contains([]string{"192.0.2.171", "2001:db8:7::171"}, from.String()) && !from.IsLinkLocalUnicast() && !from.IsUnspecified() {
						t.Errorf("a packet from %s arrived: %x", from, f)
					}
				}
				for _, what := range []string{"dhcp-offer", "dhcp6-offer", "dhcp-request", "advertise-router"} {
					if bytes.Contains(f, []byte(what)) {
						t.Errorf("%s arrived", what)
					}
				}
			}
		}
		if text := w.OK(t, "ls"); !strings.Contains(text, "MAY-SPOOF") || strings.Count(text, "MAY-SPOOF") != 1 {
			t.Errorf("ls:\n%s", text)
		}
		if text := w.OK(t, "show", node); !strings.Contains(text, "spoof check ") {
			t.Errorf("show:\n%s", text)
		}
	})
}

// source returns the source address of the IP packet in a frame.
func source(f []byte) (netip.Addr, bool) {
	switch {
	case len(f) >= 34 && f[12] == 8 && f[13] == 0:
		return netip.AddrFrom4([4]byte(f[26:30])), true
	case len(f) >= 54 && f[12] == 0x86 && f[13] == 0xdd:
		return netip.AddrFrom16([16]byte(f[22:38])), true
	}
	return netip.Addr{}, false
}

// listen captures all frames that arrive at a node. The function that it returns gives the foreign frames since its last call.
func listen(t *testing.T, pid int) func(t *testing.T) [][]byte {
	t.Helper()
	var fd int
	err := thread.Own(func() error {
		ns, err := unix.Open(fmt.Sprintf("/proc/%d/ns/net", pid), unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err != nil {
			return err
		}
		defer unix.Close(ns)
		if err := unix.Setns(ns, unix.CLONE_NEWNET); err != nil {
			return err
		}
		const all = unix.ETH_P_ALL<<8&0xff00 | unix.ETH_P_ALL>>8
		fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, all)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(fd) })
	return func(t *testing.T) (frames [][]byte) {
		t.Helper()
		buf := make([]byte, 4096)
		for end := time.Now().Add(testkit.Bound()); time.Now().Before(end); {
			n, from, err := unix.Recvfrom(fd, buf, 0)
			if err == unix.EAGAIN {
				if len(frames) > 0 { // a veth delivers before the sender's call returns
					return frames
				}
				time.Sleep(5 * time.Millisecond)
				continue
			}
			if err != nil {
				t.Fatal(err)
			}
			if l, ok := from.(*unix.SockaddrLinklayer); ok && l.Pkttype != unix.PACKET_OUTGOING {
				frames = append(frames, bytes.Clone(buf[:n]))
			}
		}
		return frames
	}
}
