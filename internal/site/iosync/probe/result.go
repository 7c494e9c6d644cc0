package probe

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"path/filepath"
	"slices"
)

// Result is the result of an audit. Figures are bytes.
type Result struct {
	FileSystem string  `json:"file_system"`
	Server     string  `json:"server"`
	Disk       string  `json:"disk"` // its number: "7:0"
	Seconds    float64 `json:"seconds"`
	Ways       Ways    `json:"ways"`
	Leaked     int64   `json:"leaked"`   // of all nodes
	Polluted   int64   `json:"polluted"` // of all nodes' groups
	Nodes      []Node  `json:"nodes"`
	Others     []Other `json:"others,omitempty"` // peers that are no nodes
	Unknown    Unknown `json:"unknown"`
	Writeback  Charge  `json:"writeback"` // data that any peer had written to memory before
	Journal    Charge  `json:"journal"`   // the file system's own
	Lost       int64   `json:"lost"`      // seen, but not counted for anybody: too many peers and groups
}

// Node is a node's I/O.
type Node struct {
	Name      string       `json:"name"`
	Addresses []netip.Addr `json:"addresses"`
	Read      Flow         `json:"read"`
	Write     Flow         `json:"write"`              // direct, synchronous, or flushed by the thread that serves the node
	Polluted  Charge       `json:"polluted"`           // other peers' I/O that was charged to its group; To is the peer
	ByProcess int64        `json:"by_process"`         // part of Read and Write: seen by the peer of the process or its parent
	ByGroup   int64        `json:"by_group,omitempty"` // the part of them that a limit held, known by the peers that waited in the group
}

// Flow is a node's I/O that was charged to its own group, and its I/O that was not.
type Flow struct {
	Own    int64  `json:"own"`
	Leaked Charge `json:"leaked"`
}

// Charge is bytes by the group that they were charged to: "wn-1" and "_server" of the file system's own groups, else a path in
// the hierarchy of groups, "/" for its top.
type Charge struct {
	Bytes int64            `json:"bytes"`
	To    map[string]int64 `json:"to,omitempty"`
}

// Other is the I/O of a peer that is no node.
type Other struct {
	Address netip.Addr `json:"address"`
	Read    int64      `json:"read"`
	Write   int64      `json:"write"`
}

// Unknown is I/O whose peer is unknown.
type Unknown struct {
	NoPeer  Charge `json:"no_peer"` // of threads whose process and parents received nothing
	Several Charge `json:"several"` // of threads that received nothing, in processes with several peers
	Kernel  Charge `json:"kernel"`  // of the kernel's threads: also what a limit held, while several waited in the group
}

// Bytes returns the sum.
func (u Unknown) Bytes() int64 { return u.NoPeer.Bytes + u.Several.Bytes + u.Kernel.Bytes }

func (c *Charge) add(to string, bytes int64) {
	if c.To == nil {
		c.To = map[string]int64{}
	}
	c.Bytes += bytes
	c.To[to] += bytes
}

// Result works out the result from the counts and from the nodes' addresses and groups.
func (f *Folder) Result(c Counts, w Ways) Result {
	r := Result{FileSystem: filepath.Base(f.Dir), Ways: w, Lost: int64(c.Lost)}
	nodes, others := map[string]*Node{}, map[netip.Addr]*Other{}
	node := func(name string) *Node {
		if nodes[name] == nil {
			nodes[name] = &Node{Name: name}
		}
		return nodes[name]
	}
	for addr, name := range f.nodes {
		n := node(name)
		n.Addresses = append(n.Addresses, addr)
	}
	waits := f.waiters(c.Waits)
	charged := f.charged(c.Sums)
	for _, s := range c.Sums {
		to, bytes := charged[s.Group], int64(s.Bytes)
		own, served := f.groups[s.Group]
		s = held(s, served, waits)
		switch s.Class {
		case Journal:
			r.Journal.add(to, bytes)
			continue
		case Writeback:
			r.Writeback.add(to, bytes)
			continue
		case KernelWrite:
			if !served {
				r.Writeback.add(to, bytes) // sync(2), or a kernel's thread that writes for another one
				continue
			}
		}
		name, is := f.of(s.Peer)
		if s.Peer.IsValid() && nodes[own] != nil && own != name {
			nodes[own].Polluted.add(cmp.Or(name, s.Peer.String()), bytes)
			r.Polluted += bytes
		}
		switch {
		case is:
			r.Leaked += node(name).take(s, to, own == name && served)
		case s.Peer.IsValid():
			if others[s.Peer] == nil {
				others[s.Peer] = &Other{Address: s.Peer}
			}
			*pick(s.Class, &others[s.Peer].Read, &others[s.Peer].Write) += bytes
		case s.Class == KernelRead, s.Class == KernelWrite:
			r.Unknown.Kernel.add(to, bytes)
		case s.By == BySeveral:
			r.Unknown.Several.add(to, bytes)
		default:
			r.Unknown.NoPeer.add(to, bytes)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(nodes)) {
		slices.SortFunc(nodes[name].Addresses, netip.Addr.Compare)
		r.Nodes = append(r.Nodes, *nodes[name])
	}
	for _, a := range slices.SortedFunc(maps.Keys(others), netip.Addr.Compare) {
		r.Others = append(r.Others, *others[a])
	}
	return r
}

// take adds a request of the node, and returns what of it is leaked.
func (n *Node) take(s Sum, to string, own bool) int64 {
	bytes := int64(s.Bytes)
	switch s.By {
	case ByProcess, ByParent:
		n.ByProcess += bytes
	case ByGroup:
		n.ByGroup += bytes
	}
	flow := pick(s.Class, &n.Read, &n.Write)
	if own {
		flow.Own += bytes
		return 0
	}
	flow.Leaked.add(to, bytes)
	return bytes
}

func pick[T any](c Class, read, write T) T {
	if c == Read || c == KernelRead {
		return read
	}
	return write
}

// held returns a request that a limit held with the peer that alone waited in the group it was charged to.
func held(s Sum, served bool, waits map[uint64][]netip.Addr) Sum {
	peers := waits[s.Group]
	if !served || s.Class != KernelRead && s.Class != KernelWrite || len(peers) != 1 || !peers[0].IsValid() {
		return s
	}
	s.Peer, s.By, s.Class = peers[0], ByGroup, pick(s.Class, Read, Write)
	return s
}

// waiters returns for each group the peers whose threads waited in it: one address of each node, an invalid one for unknown peers.
func (f *Folder) waiters(waits []Wait) map[uint64][]netip.Addr {
	by := map[uint64][]netip.Addr{}
	for _, w := range waits {
		known := slices.ContainsFunc(by[w.Group], func(a netip.Addr) bool {
			return a == w.Peer || f.nodes[a] != "" && f.nodes[a] == f.nodes[w.Peer]
		})
		if !known {
			by[w.Group] = append(by[w.Group], w.Peer)
		}
	}
	return by
}

// charged returns the names of the groups in sums.
func (f *Folder) charged(sums []Sum) map[uint64]string {
	names := maps.Clone(f.groups)
	var more map[uint64]string
	for _, s := range sums {
		if names[s.Group] != "" {
			continue
		}
		if more == nil {
			more = f.names()
		}
		names[s.Group] = cmp.Or(more[s.Group], fmt.Sprintf("group %d", s.Group))
	}
	return names
}
