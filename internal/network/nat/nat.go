// Package nat connects nodes to the networks of the host: it gives a bridge of the host and its nodes private addresses,
// translates them by nftables, publishes nodes' ports, and lends the host the right to forward.
//
// Everything in the kernel belongs to one root of Berth: a bridge, and a table of nftables with the bridge's name. Both
// come with the first node and go with the last. Other tables are read and never changed.
package nat

import (
	"fmt"
	"net/netip"

	"berth/internal/sys/step"
)

// Network is the private network of a nat bridge. The first address of each prefix is the bridge's.
type Network struct {
	V4 netip.Prefix `json:"v4"`
	V6 netip.Prefix `json:"v6,omitzero"` // not valid on a host without IPv6
}

// Gateway is the bridge's own address in a prefix.
func Gateway(p netip.Prefix) netip.Prefix { return at(p, 1) }

// Gateways are the bridge's own addresses.
func (n Network) Gateways() []netip.Prefix {
	all := []netip.Prefix{Gateway(n.V4)}
	if n.V6.IsValid() {
		all = append(all, Gateway(n.V6))
	}
	return all
}

// Of returns the addresses of the node with this IPv4 address. The IPv6 address has the same number in its prefix.
func (n Network) Of(v4 netip.Addr) []netip.Prefix {
	all := []netip.Prefix{netip.PrefixFrom(v4, n.V4.Bits())}
	if n.V6.IsValid() {
		all = append(all, at(n.V6, number(n.V4, v4)))
	}
	return all
}

// at returns the address with this number in a prefix.
func at(p netip.Prefix, n uint32) netip.Prefix {
	b := p.Masked().Addr().AsSlice()
	for i := len(b) - 1; n > 0; i-- {
		n += uint32(b[i])
		b[i] = byte(n)
		n >>= 8
	}
	a, _ := netip.AddrFromSlice(b) // of 4 or 16 bytes
	return netip.PrefixFrom(a, p.Bits())
}

// number is the number of an IPv4 address in its prefix.
func number(p netip.Prefix, a netip.Addr) uint32 {
	return word(a) - word(p.Masked().Addr())
}

func word(a netip.Addr) uint32 {
	b := a.As4()
	return uint32(b[0])<<24 | uint32(b[1])<<16 | uint32(b[2])<<8 | uint32(b[3])
}

// Places are the names and files of one root's nat network.
type Places struct {
	Bridge  string // name of the bridge and of the table of nftables
	Lib     string // folder of what lasts: the network, the claims of addresses and ports
	Run     string // folder with a link for each running node
	Forward string // file that records the host's own settings of forwarding; one per host
	Lock    string // file of the host-wide lock
	SiteID  string
}

// Kinds makes an empty step of each kind of this package.
func Kinds() step.Kinds {
	return step.Kinds{
		"nat.claim-address": func() step.Step { return &ClaimAddress{} },
		"nat.claim-port":    func() step.Step { return &ClaimPort{} },
		"nat.bridge":        func() step.Step { return &Bridge{} },
		"nat.publish":       func() step.Step { return &Publish{} },
	}
}

func (n Network) String() string {
	if n.V6.IsValid() {
		return fmt.Sprintf("%s and %s", n.V4, n.V6)
	}
	return n.V4.String()
}
