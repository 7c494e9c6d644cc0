// Package want defines the limits of nodes on shared file systems, in the form in which hosts tell them to the file servers of
// a site.
package want

import (
	"net/netip"
	"slices"

	"berth/internal/spec/vnode"
	"berth/internal/sys/mac"
)

// Node has the limits of one node on all shared file systems: the value of a key HOST/NODE of the cluster state. Its host writes
// it when the node is made, before the node's first process, and removes it with the node.
type Node struct {
	// Addresses are those from which its requests come. A link-local one of IPv6 that was made of a MAC stands for all that have the
	// same second half: the kernel derives such under each prefix that a router advertises.
	Addresses []netip.Addr `json:"addresses"`
	Class     vnode.Class  `json:"class,omitempty"`
	IO        []Entry      `json:"io"`

	Strays []string `json:"strays,omitempty"` // how requests of the node can come from an address that is not among these
}

// Interface has what a node's host knows of an interface beside the spec.
type Interface struct {
	MAC    mac.Address // the zero value: that of a lent adapter
	Leased netip.Addr  // by DHCP; the zero value: none
}

// Entry has the limits of a node on one file system. A limit of 0 is none.
type Entry struct {
	Name       string       `json:"name"` // of the entry in the node's spec
	Filesystem string       `json:"filesystem"`
	Read       vnode.IORate `json:"read,omitzero"`
	Write      vnode.IORate `json:"write,omitzero"`
	Weight     int          `json:"weight,omitempty"`
	PerServer  bool         `json:"per_server,omitempty"` // each server allows the whole rate
}

// Of returns the limits that a node's spec asks for; nil if there are none. known has the node's interfaces by name.
func Of(n *vnode.Node, known map[string]Interface) *Node {
	w := Node{Class: n.Class}
	for _, io := range n.IO {
		if io.Filesystem != "" {
			w.IO = append(w.IO, Entry{Name: io.Name, Filesystem: io.Filesystem, Read: io.Read, Write: io.Write, Weight: io.Weight, PerServer: io.PerServer})
		}
	}
	if len(w.IO) == 0 {
		return nil
	}
	for _, i := range n.Network {
		if i.Mode == vnode.None {
			continue
		}
		is := known[i.Name]
		if stray := strays(i, is); stray != "" {
			w.Strays = append(w.Strays, "network "+i.Name+" "+stray)
		}
		if i.Mode == vnode.NAT {
			continue
		}
		for _, text := range i.Address {
			if p, err := netip.ParsePrefix(text); err == nil { // the spec was validated
				w.Addresses = append(w.Addresses, p.Addr())
			}
		}
		if is.Leased.IsValid() {
			w.Addresses = append(w.Addresses, is.Leased)
		}
		if is.MAC.IsEthernet() {
			w.Addresses = append(w.Addresses, is.MAC.LinkLocal())
		}
	}
	return &w
}

// strays says how requests over an interface can come from an address that file servers do not know as the node's; "" if they
// cannot.
func strays(i vnode.Network, is Interface) string {
	switch {
	case i.Mode == vnode.NAT:
		return "is of mode nat: what the node asks for that way comes from the address of its host"
	case i.Spoof:
		return "has spoof: true: the node can ask from the address of anybody"
	case len(i.Address) == 0 && !i.DHCP:
		return "has no address: the node can ask from whatever address it takes there"
	case !is.MAC.IsEthernet():
		return "has the MAC of its adapter: the node can ask from the IPv6 addresses that its kernel derives from it; give it a mac"
	case i.DHCP && !is.Leased.IsValid():
		return "has no lease yet: a connection that the node opens before file servers hear of its address is not held by way launch while it is open"
	}
	return ""
}

// On returns the node's entry of a file system.
func (n *Node) On(filesystem string) (Entry, bool) {
	i := slices.IndexFunc(n.IO, func(e Entry) bool { return e.Filesystem == filesystem })
	if i < 0 {
		return Entry{}, false
	}
	return n.IO[i], true
}

// Part is the entry as one of a number of servers holds it: an equal part of each rate, unless the entry is for each server. The
// parts together are never above the whole, and each is at least 1.
func (e Entry) Part(servers int) Entry {
	if e.PerServer || servers < 2 {
		return e
	}
	for _, r := range []*vnode.IORate{&e.Read, &e.Write} {
		if r.Rate != 0 {
			r.Rate = max(1, r.Rate/vnode.Rate(servers))
		}
		if r.IOPS != 0 {
			r.IOPS = max(1, r.IOPS/servers)
		}
	}
	return e
}

// Server is a file server of a file system: the value of a key HOST/FILESYSTEM of the cluster state.
type Server struct {
	Path   string `json:"path"`   // folder that it serves
	Server string `json:"server"` // kind of program that serves it
	Way    string `json:"way"`    // how requests of nodes are told apart there

	Capacity Capacity `json:"capacity,omitzero"`
}

// Normal is the weight of a node that asks for none.
const Normal = 100
