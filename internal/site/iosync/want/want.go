// Package want defines the limits of nodes on shared file systems, in the form in which hosts tell them to the file servers of
// a site.
package want

import (
	"net/netip"
	"slices"

	"berth/internal/spec/vnode"
)

// Node has the limits of one node on all shared file systems: the value of a key HOST/NODE of the cluster state. Its host writes
// it when the node is made, before the node's first process, and removes it with the node.
type Node struct {
	Addresses []netip.Addr `json:"addresses"` // from which its requests come
	Class     vnode.Class  `json:"class,omitempty"`
	IO        []Entry      `json:"io"`
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

// Of returns the limits that a node's spec asks for; nil if there are none.
func Of(n *vnode.Node) *Node {
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
		if i.Mode == vnode.NAT || i.Mode == vnode.None {
			continue
		}
		for _, text := range i.Address {
			if p, err := netip.ParsePrefix(text); err == nil { // the spec was validated
				w.Addresses = append(w.Addresses, p.Addr())
			}
		}
	}
	return &w
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
