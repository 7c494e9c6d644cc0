package address

import (
	"bytes"
	"encoding/binary"
	"net/netip"

	"golang.org/x/sys/unix"

	"berth/internal/sys/mac"
)

// arpRequest returns the broadcast frame by which a machine with a MAC and an IPv4 address asks which machine has another address.
func arpRequest(from mac.Address, sender, target netip.Addr) []byte {
	f := append(bytes.Repeat([]byte{0xff}, 6), from.HardwareAddr()...)
	f = append(f, 8, 6, 0, 1, 8, 0, 6, 4, 0, 1) // ARP for IPv4 on Ethernet, request
	f = append(append(f, from.HardwareAddr()...), sender.AsSlice()...)
	f = append(append(f, make([]byte, 6)...), target.AsSlice()...) // target MAC unknown
	return append(f, make([]byte, 18)...)
}

// icmp6 returns the Ethernet frame that carries an ICMPv6 message, whose checksum it fills in, to a multicast group.
func icmp6(from mac.Address, source, group netip.Addr, msg []byte) []byte {
	src, to := source.As16(), group.As16()
	binary.BigEndian.PutUint16(msg[2:], checksum6(src, to, msg))
	f := append([]byte{0x33, 0x33, to[12], to[13], to[14], to[15]}, from.HardwareAddr()...)
	f = append(f, 0x86, 0xdd, 0x60, 0, 0, 0, 0, byte(len(msg)), unix.IPPROTO_ICMPV6, 255)
	return append(append(append(f, src[:]...), to[:]...), msg...)
}

// checksum6 returns the checksum of an ICMPv6 message of an even length (RFC 4443, 2.3).
func checksum6(from, to [16]byte, msg []byte) uint16 {
	sum := uint32(len(msg)) + unix.IPPROTO_ICMPV6
	for _, b := range [][]byte{from[:], to[:], msg} {
		for i := 0; i < len(b); i += 2 {
			sum += uint32(binary.BigEndian.Uint16(b[i:]))
		}
	}
	for sum > 0xffff {
		sum = sum&0xffff + sum>>16
	}
	return ^uint16(sum)
}
