package link

import (
	"context"
	"fmt"
	"slices"

	"berth/internal/host/netif"
	"berth/internal/network/nat"
	"berth/internal/network/shape"
	"berth/internal/spec/vnode"
)

// Wire describes how an interface of a node is connected: the links that must be on the host for it to pass frames.
type Wire struct {
	If     string     `json:"name"`
	Mode   vnode.Mode `json:"mode"`
	Parent string     `json:"parent,omitempty"`    // bridge or adapter; "": the host-only bridge
	HostIf string     `json:"host_name,omitempty"` // the host's end of a veth
	Ports  []string   `json:"ports,omitempty"`     // of the host that lead to it
}

// isPort reports whether the interface is a veth, whose other end is a port of a bridge.
func (w Wire) isPort() bool { return w.Mode == vnode.Bridge || w.Mode == vnode.NAT }

// Wires returns how a node's interfaces are connected.
func Wires(in Input) []Wire {
	var all []Wire
	for _, n := range in.Networks {
		w := Wire{If: n.Name, Mode: n.Mode, Parent: n.Parent, Ports: n.Ports}
		if n.Mode == vnode.NAT {
			w.Parent = in.NAT.Bridge
		}
		if w.isPort() {
			w.HostIf = hostName(in.Bridge, in.Node, n.Name)
		}
		if n.Mode != vnode.None {
			all = append(all, w)
		}
	}
	return all
}

// Snapshot holds the host's links, those in the host-only bridge's namespace, and the table of nftables of mode nat. Each of them is read when it
// is first needed.
type Snapshot struct {
	hub        netif.Hub
	host, hubs *table
	rules      map[string]*nat.Table // by bridge; nil: not known
}

type table struct {
	byName map[string]netif.Brief
	names  map[int]string
}

// NewSnapshot returns an empty Snapshot; hub is the namespace of the host-only bridge.
func NewSnapshot(hub netif.Hub) *Snapshot {
	return &Snapshot{hub: hub, rules: map[string]*nat.Table{}}
}

// LinksAlone returns an empty Snapshot that does not look at the table of nftables: that takes the longer the more nodes there are.
func LinksAlone(hub netif.Hub) *Snapshot { return &Snapshot{hub: hub} }

// Trouble says why an interface of a running node is not connected to its network; "" if it is. pid is the node's init.
func (s *Snapshot) Trouble(w Wire, pid int) (string, error) {
	if !w.isPort() {
		inside, err := shape.Counts(pid)
		if err != nil || slices.ContainsFunc(inside, func(c shape.Count) bool { return c.Name == w.If }) {
			return "", nil //nolint:nilerr // it has ended
		}
	}
	where, hub, look := &s.host, netif.Hub(""), (*table).shared
	if w.isPort() {
		look = (*table).port
		if w.Parent == "" {
			where, hub, look = &s.hubs, s.hub, (*table).own
		}
	}
	t, err := s.read(where, hub)
	if err != nil {
		return "", err
	}
	why := look(t, w)
	if why == "" && w.Mode == vnode.NAT && s.rules != nil {
		t, asked := s.rules[w.Parent]
		if !asked {
			t, _ = nat.ReadTable(context.Background(), w.Parent) // nothing is known without nft, or without the right to ask
			s.rules[w.Parent] = t
		}
		if t != nil {
			why = t.Trouble(w.Ports)
		}
	}
	if why == "" {
		return "", nil
	}
	return fmt.Sprintf("%s: not connected: %s", w.If, why), nil
}

// shared says why an interface is missing from the node.
func (t *table) shared(w Wire) string {
	if _, there := t.byName[w.Parent]; !there && w.Mode == vnode.Macvlan {
		return "its parent " + w.Parent + " is gone"
	}
	return "it is gone from the node"
}

// port says what is wrong with a port of a user's bridge.
func (t *table) port(w Wire) string {
	bridge, there := t.byName[w.Parent]
	end, ok := t.byName[w.HostIf]
	switch {
	case !there:
		return "bridge " + w.Parent + " is gone"
	case !ok:
		return "its link on the host is gone"
	case end.Master == 0:
		return "it was taken out of bridge " + w.Parent
	case end.Master != bridge.Index:
		return "it is a port of " + t.names[end.Master] + ", not of bridge " + w.Parent
	case !end.Up:
		return "link " + w.HostIf + " of the host is down"
	case !bridge.Up:
		return "bridge " + w.Parent + " is down"
	}
	return ""
}

// own says what is wrong with a port of the host-only bridge.
func (t *table) own(w Wire) string {
	end, ok := t.byName[w.HostIf]
	switch {
	case !ok:
		return "its link to the bridge between nodes is gone"
	case end.Master == 0:
		return "the bridge between nodes is gone, or it was taken out"
	case !end.Up:
		return "link " + w.HostIf + " at the bridge between nodes is down"
	}
	return ""
}

func (s *Snapshot) read(t **table, hub netif.Hub) (*table, error) {
	if *t != nil {
		return *t, nil
	}
	*t = &table{byName: map[string]netif.Brief{}, names: map[int]string{}}
	err := hub.Each(func(l netif.Brief) bool {
		(*t).byName[l.Name], (*t).names[l.Index] = l, l.Name
		return true
	})
	if netif.Absent(err) {
		err = nil
	}
	return *t, err
}

// Namespaces returns the namespaces whose link events concern these wires; the zero Hub is the host's.
func Namespaces(wires []Wire, hub netif.Hub) []netif.Hub {
	var all []netif.Hub
	for _, w := range wires {
		ns := netif.Hub("")
		if w.Mode == vnode.Bridge && w.Parent == "" {
			ns = hub
		}
		if !slices.Contains(all, ns) {
			all = append(all, ns)
		}
	}
	return all
}
