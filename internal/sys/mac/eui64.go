package mac

import "net/netip"

// EUI64 returns the second half of the IPv6 addresses that the kernel derives from an address on Ethernet by itself (RFC 4291, appendix A).
func (a Address) EUI64() [8]byte {
	m := a.bytes
	return [8]byte{m[0] ^ 2, m[1], m[2], 0xff, 0xfe, m[3], m[4], m[5]}
}

// LinkLocal returns the link-local IPv6 address that the kernel derives from an address on Ethernet.
func (a Address) LinkLocal() netip.Addr {
	half := a.EUI64()
	return netip.AddrFrom16([16]byte(append([]byte{0xfe, 0x80, 0, 0, 0, 0, 0, 0}, half[:]...)))
}

// Sibling returns the link-local address with the second half of an IPv6 address, if that half was made of a MAC: ff:fe is in its middle.
// An interface derives the addresses under all prefixes from this half, so who has the one has the other. For others, such as
// 2001:db8::1, whose second half many may have, and for IPv4 it is the zero value.
func Sibling(a netip.Addr) netip.Addr {
	if a = a.Unmap(); !a.Is6() {
		return netip.Addr{}
	}
	b := a.As16()
	if b[11] != 0xff || b[12] != 0xfe {
		return netip.Addr{}
	}
	copy(b[:8], []byte{0xfe, 0x80, 0, 0, 0, 0, 0, 0})
	return netip.AddrFrom16(b)
}
