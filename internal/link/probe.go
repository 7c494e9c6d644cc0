package link

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strings"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"berth/internal/refuse"
	"berth/internal/thread"
	"berth/internal/vnode"
)

// The timing of a probe for an address. RFC 5227 would take some 7 s, for networks that forward nothing for a while
// after a link came up. A machine that is there answers within a millisecond.
const (
	probes     = 3
	probeGap   = 60 * time.Millisecond
	probeWait  = 100 * time.Millisecond
	carrierFor = 5 * time.Second        // an adapter needs two to four seconds to negotiate with its switch
	carrierAt  = 200 * time.Millisecond // virtual links
)

// Probe asks the network whether an address is in use before the node gets it, by ARP (RFC 5227) or neighbour
// solicitation (RFC 4862), from the node's own interface and MAC. It sets the interface up, still without addresses.
//
// Without a carrier nobody can be asked and no address can clash: Probe succeeds. It also succeeds if the other machine
// answers late or is off.
type Probe struct {
	Inside
	MAC     string   `json:"mac,omitempty"` // empty: any
	Address []string `json:"addresses"`     // with prefix length
	Adapter bool     `json:"adapter"`       // a real adapter, whose carrier comes late
}

// probe returns the step that probes a network's addresses; nil if there is nothing to probe. The host-only bridge has
// an index of addresses instead.
func (in *Input) probe(n vnode.Network, mac string) *Probe {
	if len(n.Address) == 0 || n.Mode == vnode.Bridge && n.Parent == "" {
		return nil
	}
	return &Probe{
		Inside: Inside{NS: in.NS, If: n.Name}, MAC: mac, Address: n.Address,
		Adapter: n.Mode == vnode.Phys || n.Mode == vnode.SRIOV,
	}
}

// Kind implements step.Step.
func (p *Probe) Kind() string { return "link.probe" }

func (p *Probe) String() string {
	return fmt.Sprintf("%s that nobody on its network has %s", p.If, strings.Join(p.Address, ", "))
}

// Do probes the addresses; refuse.Busy names the MAC that answered.
func (p *Probe) Do(ctx context.Context) error {
	r, err := p.enter()
	if err != nil {
		return err
	}
	defer r.Close()
	l, err := p.link(r)
	if err != nil {
		return err
	}
	if err := bringUp(r.Handle, l, p.MAC); err != nil {
		return err
	}
	if ok, err := p.carrier(ctx, r, p.Adapter); err != nil || !ok {
		return err
	}
	q := &question{index: l.Attrs().Index, mac: l.Attrs().HardwareAddr}
	if len(q.mac) != 6 { // not Ethernet: no ARP
		return nil
	}
	for _, cidr := range p.Address {
		a, err := netip.ParsePrefix(cidr)
		if err != nil {
			return fmt.Errorf("probe address %s: %w", cidr, err)
		}
		q.addrs = append(q.addrs, a.Addr())
	}
	var addr netip.Addr
	var who net.HardwareAddr
	if err := within(r.ns, func() (err error) { addr, who, err = q.ask(ctx); return err }); err != nil {
		return fmt.Errorf("probe the addresses of %s: %w", p.If, err)
	}
	if who != nil {
		return refuse.Busyf("address %s of %s is in use on its network by %s", addr, p.If, who)
	}
	return nil
}

// Verify has nothing to read back.
func (p *Probe) Verify(context.Context) error { return nil }

// Undo does nothing: the probe leaves no state, and another step removes the interface.
func (p *Probe) Undo(context.Context) error { return nil }

// carrier waits until the interface can send, longer for a real adapter. It returns false if there is no carrier.
func (i *Inside) carrier(ctx context.Context, r *room, adapter bool) (bool, error) {
	wait := carrierAt
	if adapter {
		wait = carrierFor
	}
	for end := time.Now().Add(wait); ; {
		l, err := i.link(r)
		if err != nil {
			return false, err
		}
		if l.Attrs().RawFlags&unix.IFF_LOWER_UP != 0 {
			return true, nil
		}
		if time.Now().After(end) {
			return false, nil
		}
		select {
		case <-ctx.Done():
			return false, fmt.Errorf("wait for the carrier of %s: %w", i.If, ctx.Err())
		case <-time.After(5 * time.Millisecond):
		}
	}
}

// formerLife is how long a macvlan may survive its node: the kernel destroys a dead network namespace some time later.
const formerLife = time.Second

// bringUp sets a node's interface up. It waits for an earlier macvlan with the same MAC to go.
func bringUp(h *netlink.Handle, l netlink.Link, mac string) error {
	err := h.LinkSetUp(l)
	for end := time.Now().Add(formerLife); errors.Is(err, unix.EADDRINUSE) && time.Now().Before(end); {
		time.Sleep(2 * time.Millisecond)
		err = h.LinkSetUp(l)
	}
	if errors.Is(err, unix.EADDRINUSE) { // from macvlan_open
		return refuse.Busyf("MAC %s of %s is in use on its parent: %w", mac, l.Attrs().Name, err)
	}
	if err != nil {
		return fmt.Errorf("set %s up: %w", l.Attrs().Name, err)
	}
	return nil
}

// within runs f on a thread of its own in the network namespace ns. The thread ends with f.
func within(ns *os.File, f func() error) error {
	return thread.Own(func() error {
		if err := unix.Setns(int(ns.Fd()), unix.CLONE_NEWNET); err != nil {
			return fmt.Errorf("enter network namespace: %w", err)
		}
		return f()
	})
}

// question asks the network of an interface who has one of some addresses.
type question struct {
	index int
	mac   net.HardwareAddr // the interface's MAC
	addrs []netip.Addr
}

// ask returns an address that is in use and the MAC that answered; no MAC if none is in use. It must run in the
// interface's namespace.
func (q *question) ask(ctx context.Context) (netip.Addr, net.HardwareAddr, error) {
	fd, err := q.socket()
	if err != nil {
		return netip.Addr{}, nil, err
	}
	defer unix.Close(fd)
	for n := range probes {
		for _, a := range q.addrs {
			if err := unix.Send(fd, q.frame(a), 0); err != nil && !errors.Is(err, unix.ENETDOWN) && !errors.Is(err, unix.ENOBUFS) {
				return a, nil, fmt.Errorf("send a probe for %s: %w", a, err)
			}
		}
		wait := probeGap
		if n == probes-1 {
			wait = probeWait
		}
		a, who, err := q.listen(ctx, fd, time.Now().Add(wait))
		if err != nil || who != nil {
			return a, who, err
		}
	}
	return netip.Addr{}, nil, nil
}

// socket opens a packet socket on the interface that receives all frames, including those to the IPv6 all-nodes group.
func (q *question) socket() (int, error) {
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0) // 0: receives nothing until bound
	if err != nil {
		return -1, fmt.Errorf("open packet socket: %w", err)
	}
	all := unix.PacketMreq{Ifindex: int32(q.index), Type: unix.PACKET_MR_MULTICAST, Alen: 6, Address: [8]uint8{0x33, 0x33, 0, 0, 0, 1}}
	err = unix.SetsockoptPacketMreq(fd, unix.SOL_PACKET, unix.PACKET_ADD_MEMBERSHIP, &all)
	if err == nil {
		err = unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: network16(unix.ETH_P_ALL), Ifindex: q.index})
	}
	if err != nil {
		unix.Close(fd)
		return -1, fmt.Errorf("bind packet socket: %w", err)
	}
	return fd, nil
}

func network16(v uint16) uint16 {
	return binary.NativeEndian.Uint16(binary.BigEndian.AppendUint16(nil, v))
}

// listen waits for an answer until end.
func (q *question) listen(ctx context.Context, fd int, end time.Time) (netip.Addr, net.HardwareAddr, error) {
	buf := make([]byte, 256)
	for {
		left := time.Until(end)
		if left <= 0 || ctx.Err() != nil {
			return netip.Addr{}, nil, ctx.Err()
		}
		p := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
		if n, err := unix.Poll(p, int(left.Milliseconds())+1); n <= 0 {
			if err != nil && !errors.Is(err, unix.EINTR) {
				return netip.Addr{}, nil, fmt.Errorf("wait for an answer: %w", err)
			}
			continue
		}
		n, _, err := unix.Recvfrom(fd, buf, unix.MSG_DONTWAIT)
		if err != nil { // ENETDOWN, EAGAIN: treated as silence
			continue
		}
		if a, who := q.claims(buf[:n]); who != nil {
			return a, who, nil
		}
	}
}

// claims returns the address that a frame claims for somebody else, and who: the sender of an ARP packet, the target of
// a neighbour advertisement, or the target of another machine's probe.
func (q *question) claims(f []byte) (netip.Addr, net.HardwareAddr) {
	const header = 14
	if len(f) < header || bytes.Equal(f[6:12], q.mac) {
		return netip.Addr{}, nil
	}
	var addr netip.Addr
	who := net.HardwareAddr(bytes.Clone(f[6:12]))
	body := f[header:]
	switch binary.BigEndian.Uint16(f[12:14]) {
	case unix.ETH_P_ARP:
		if len(body) < 28 || !bytes.Equal(body[:6], []byte{0, 1, 8, 0, 6, 4}) || bytes.Equal(body[8:14], q.mac) {
			return addr, nil
		}
		who = net.HardwareAddr(bytes.Clone(body[8:14]))
		addr = netip.AddrFrom4([4]byte(body[14:18]))
		if isProbe := body[7] == 1 && addr.IsUnspecified(); isProbe {
			addr = netip.AddrFrom4([4]byte(body[24:28]))
		}
	case unix.ETH_P_IPV6:
		const icmp = 40
		if len(body) < icmp+24 || body[6] != unix.IPPROTO_ICMPV6 {
			return addr, nil
		}
		isProbe := body[icmp] == 135 && netip.AddrFrom16([16]byte(body[8:24])).IsUnspecified()
		if body[icmp] != 136 && !isProbe {
			return addr, nil
		}
		addr = netip.AddrFrom16([16]byte(body[icmp+8 : icmp+24]))
	}
	for _, a := range q.addrs {
		if a.WithZone("") == addr {
			return a, who
		}
	}
	return addr, nil
}

// frame returns the Ethernet frame that asks who has a.
func (q *question) frame(a netip.Addr) []byte {
	if a.Is4() {
		ip := a.As4()
		f := append(bytes.Repeat([]byte{0xff}, 6), q.mac...)
		f = append(f, 8, 6, 0, 1, 8, 0, 6, 4, 0, 1) // ARP for IPv4 on Ethernet, request
		f = append(f, q.mac...)
		f = append(f, make([]byte, 4+6)...) // sender IP 0.0.0.0, as in a probe; target MAC unknown
		return append(append(f, ip[:]...), make([]byte, 18)...)
	}
	ip := a.As16()
	to := [16]byte{0: 0xff, 1: 0x02, 11: 1, 12: 0xff, 13: ip[13], 14: ip[14], 15: ip[15]} // solicited-node multicast
	msg := append([]byte{135, 0, 0, 0, 0, 0, 0, 0}, ip[:]...)
	binary.BigEndian.PutUint16(msg[2:], checksum6(to, msg))
	f := append([]byte{0x33, 0x33, to[12], to[13], to[14], to[15]}, q.mac...)
	f = append(f, 0x86, 0xdd, 0x60, 0, 0, 0, 0, byte(len(msg)), unix.IPPROTO_ICMPV6, 255)
	f = append(f, make([]byte, 16)...) // source: the unspecified address
	return append(append(f, to[:]...), msg...)
}

// checksum6 returns the checksum of an ICMPv6 message from the unspecified address (RFC 4443, 2.3).
func checksum6(to [16]byte, msg []byte) uint16 {
	sum := uint32(len(msg)) + unix.IPPROTO_ICMPV6
	for _, b := range [][]byte{to[:], msg} {
		for i := 0; i < len(b); i += 2 {
			sum += uint32(binary.BigEndian.Uint16(b[i:]))
		}
	}
	for sum > 0xffff {
		sum = sum&0xffff + sum>>16
	}
	return ^uint16(sum)
}
