package address

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"golang.org/x/sys/unix"

	"berth/internal/sys/mac"
)

// The timing of a probe for an address. RFC 5227 would take some 7 s, for networks that forward nothing for a while
// after a link came up. A machine that is there answers within a millisecond.
const (
	probes    = 3
	probeGap  = 60 * time.Millisecond
	probeWait = 100 * time.Millisecond
)

// question asks the network of an interface which machine has one of some addresses.
type question struct {
	index int
	mac   mac.Address // the interface's MAC
	addrs []netip.Addr
}

// ask returns an address that is in use and the MAC that answered; no MAC if none is in use. It must run in the
// interface's namespace.
func (q *question) ask(ctx context.Context) (netip.Addr, mac.Address, error) {
	fd, err := q.socket()
	if err != nil {
		return netip.Addr{}, mac.Address{}, err
	}
	defer unix.Close(fd)
	for n := range probes {
		for _, a := range q.addrs {
			if err := unix.Send(fd, q.frame(a), 0); err != nil && !errors.Is(err, unix.ENETDOWN) && !errors.Is(err, unix.ENOBUFS) {
				return a, mac.Address{}, fmt.Errorf("send a probe for %s: %w", a, err)
			}
		}
		wait := probeGap
		if n == probes-1 {
			wait = probeWait
		}
		a, who, err := q.listen(ctx, fd, time.Now().Add(wait))
		if err != nil || !who.IsZero() {
			return a, who, err
		}
	}
	return netip.Addr{}, mac.Address{}, nil
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
func (q *question) listen(ctx context.Context, fd int, end time.Time) (netip.Addr, mac.Address, error) {
	buf := make([]byte, 256)
	for {
		left := time.Until(end)
		if left <= 0 || ctx.Err() != nil {
			return netip.Addr{}, mac.Address{}, ctx.Err()
		}
		p := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
		if n, err := unix.Poll(p, int(left.Milliseconds())+1); n <= 0 {
			if err != nil && !errors.Is(err, unix.EINTR) {
				return netip.Addr{}, mac.Address{}, fmt.Errorf("wait for an answer: %w", err)
			}
			continue
		}
		n, _, err := unix.Recvfrom(fd, buf, unix.MSG_DONTWAIT)
		if err != nil { // ENETDOWN, EAGAIN: treated as silence
			continue
		}
		if a, who := q.claims(buf[:n]); !who.IsZero() {
			return a, who, nil
		}
	}
}

// claims returns the address that a frame claims for another machine, and the MAC of that machine: the sender of an ARP
// packet, the target of a neighbour advertisement, or the target of another machine's probe.
func (q *question) claims(f []byte) (netip.Addr, mac.Address) {
	const header = 14
	if len(f) < header || mac.Of(f[6:12]) == q.mac {
		return netip.Addr{}, mac.Address{}
	}
	var addr netip.Addr
	who := mac.Of(f[6:12])
	body := f[header:]
	switch binary.BigEndian.Uint16(f[12:14]) {
	case unix.ETH_P_ARP:
		if len(body) < 28 || !bytes.Equal(body[:6], []byte{0, 1, 8, 0, 6, 4}) || mac.Of(body[8:14]) == q.mac {
			return addr, mac.Address{}
		}
		who = mac.Of(body[8:14])
		addr = netip.AddrFrom4([4]byte(body[14:18]))
		if isProbe := body[7] == 1 && addr.IsUnspecified(); isProbe {
			addr = netip.AddrFrom4([4]byte(body[24:28]))
		}
	case unix.ETH_P_IPV6:
		const icmp = 40
		if len(body) < icmp+24 || body[6] != unix.IPPROTO_ICMPV6 {
			return addr, mac.Address{}
		}
		isProbe := body[icmp] == 135 && netip.AddrFrom16([16]byte(body[8:24])).IsUnspecified()
		if body[icmp] != 136 && !isProbe {
			return addr, mac.Address{}
		}
		addr = netip.AddrFrom16([16]byte(body[icmp+8 : icmp+24]))
	}
	for _, a := range q.addrs {
		if a.WithZone("") == addr {
			return a, who
		}
	}
	return addr, mac.Address{}
}

// frame returns the Ethernet frame that asks which machine has a.
func (q *question) frame(a netip.Addr) []byte {
	if a.Is4() {
		return arpRequest(q.mac, netip.IPv4Unspecified(), a) // without a sender's address, as in a probe
	}
	ip := a.As16()
	group := netip.AddrFrom16([16]byte{0: 0xff, 1: 0x02, 11: 1, 12: 0xff, 13: ip[13], 14: ip[14], 15: ip[15]}) // solicited-node multicast
	return icmp6(q.mac, netip.IPv6Unspecified(), group, append([]byte{135, 0, 0, 0, 0, 0, 0, 0}, ip[:]...))
}
