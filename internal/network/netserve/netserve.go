// Package netserve is a helper process that makes nodes reachable by name and from the host itself: it answers DNS at the
// addresses of the nodes' bridges, and relays connections to ports of the host's loopback.
//
// There is one process for each root of Berth. The first node that needs it starts it ([Serve], a step), and it ends with the
// last. It opens no socket for packets of others by itself: root opens them and passes them to it. It has a user of its own and
// no capabilities, because it reads what hostile nodes send. It keeps nothing on disk: the nodes' journals say what it serves,
// and the keeper ([Watch]) starts it again from them when it was killed.
package netserve

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"

	"berth/internal/sys/step"
)

// Kinds makes an empty step of each kind of this package.
func Kinds() step.Kinds {
	return step.Kinds{"netserve.serve": func() step.Step { return &Serve{} }}
}

// Entry says what the process serves for one node.
type Entry struct {
	Node   string  `json:"node"`
	Names  []Named `json:"names,omitempty"`
	Relays []Relay `json:"relays,omitempty"`
}

// Named is how a node is known on one bridge.
type Named struct {
	Bridge    Bridge       `json:"bridge"`
	Names     []string     `json:"names"` // the node's name, then its other names
	Addresses []netip.Addr `json:"addresses"`
}

// Bridge is a bridge of nodes that know each other by name.
type Bridge struct {
	Name     string         `json:"name"`               // of the link
	At       []netip.Addr   `json:"at"`                 // the bridge's own addresses, where DNS is answered
	Prefixes []netip.Prefix `json:"prefixes"`           // only queries from there are answered
	Netns    string         `json:"netns,omitempty"`    // file of its network namespace; "": the host's
	Isolated bool           `json:"isolated,omitempty"` // only the nodes' names are answered; the rest is refused
}

// Relay leads from a port of the host's loopback to a port of the node.
type Relay struct {
	Proto string         `json:"proto"` // tcp or udp
	At    netip.AddrPort `json:"at"`
	To    netip.AddrPort `json:"to"`
}

// socket is a socket that root opens and passes to the process.
type socket struct {
	Proto string         `json:"proto"`
	At    netip.AddrPort `json:"at"`
	To    netip.AddrPort `json:"to,omitzero"` // for a relay
	// For a socket for DNS: the bridge, and the index of its link. A bridge that was made again has another index, so that
	// its sockets are opened again.
	Bridge string `json:"bridge,omitempty"`
	Index  int    `json:"index,omitempty"`
	netns  string
}

// key identifies the socket; it does not depend on the node that needs it.
func (s socket) key() string { return fmt.Sprint(s.Bridge, " ", s.Index, " ", s.Proto, " ", s.At) }

// sockets lists the sockets that an entry needs. index tells the index of a bridge's link.
func (e *Entry) sockets(index func(Bridge) (int, error)) (all []socket, err error) {
	for _, n := range e.Names {
		i, err := index(n.Bridge)
		if err != nil {
			return nil, err
		}
		for _, a := range n.Bridge.At {
			for _, proto := range []string{"udp", "tcp"} {
				all = append(all, socket{Proto: proto, At: netip.AddrPortFrom(a, 53), Bridge: n.Bridge.Name, Index: i, netns: n.Bridge.Netns})
			}
		}
	}
	for _, r := range e.Relays {
		all = append(all, socket{Proto: r.Proto, At: r.At, To: r.To})
	}
	return all, nil
}

// table has the names and addresses of one bridge. It does not change: each change of a node makes a new one.
type table struct {
	names    map[string][]netip.Addr // in lower case, without the last dot
	reverse  map[netip.Addr]string
	prefixes []netip.Prefix
	isolated bool
}

// Zone is the domain of all nodes: a node is known as NAME and as NAME.berth. No query for it leaves the host.
const Zone = "berth"

// mostAlike is how many addresses an answer has at most, where several nodes have one host name.
const mostAlike = 16

// tables makes the tables of all bridges. A node's own name precedes the other names of nodes: those are not unique.
func tables(nodes map[string]*Entry) map[string]*table {
	all := map[string]*table{}
	sorted := make([]*Entry, 0, len(nodes))
	for _, e := range nodes {
		sorted = append(sorted, e)
	}
	slices.SortFunc(sorted, func(a, b *Entry) int { return cmp.Compare(a.Node, b.Node) })
	each := func(f func(t *table, n Named)) {
		for _, e := range sorted {
			for _, n := range e.Names {
				t := all[n.Bridge.Name]
				if t == nil {
					t = &table{names: map[string][]netip.Addr{}, reverse: map[netip.Addr]string{}, prefixes: n.Bridge.Prefixes, isolated: n.Bridge.Isolated}
					all[n.Bridge.Name] = t
				}
				f(t, n)
			}
		}
	}
	own := map[*table]map[string]bool{}
	each(func(t *table, n Named) {
		if len(n.Names) == 0 {
			return
		}
		name := lower(n.Names[0])
		t.names[name] = append(t.names[name], n.Addresses...)
		t.names[name+"."+Zone] = t.names[name]
		for _, a := range n.Addresses {
			t.reverse[a] = name + "." + Zone + "."
		}
		if own[t] == nil {
			own[t] = map[string]bool{}
		}
		own[t][name], own[t][name+"."+Zone] = true, true
	})
	each(func(t *table, n Named) {
		for _, name := range n.Names[min(1, len(n.Names)):] {
			name = lower(name)
			for _, known := range []string{name, name + "." + Zone} {
				if !own[t][known] && len(t.names[known]) < mostAlike {
					t.names[known] = append(t.names[known], n.Addresses...)
				}
			}
		}
	})
	for _, t := range all {
		delete(t.names, "localhost") // the loopback address, whatever a node is called (RFC 6761)
	}
	return all
}

// lower is strings.ToLower for the letters of names, which are ASCII.
func lower(s string) string {
	b := []byte(s)
	for i, c := range b {
		if 'A' <= c && c <= 'Z' {
			b[i] = c + 'a' - 'A'
		}
	}
	return string(b)
}
