package link

import (
	"context"
	"fmt"

	"github.com/vishvananda/netlink"

	"berth/internal/host/netif"
	"berth/internal/sys/fault"
	"berth/internal/sys/mac"
	"berth/internal/sys/refuse"
)

// Macvlan is an interface of a node that shares an adapter of the host under a MAC of its own. Nodes on one adapter
// reach each other and the network beyond it, but the kernel separates them from the host itself.
type Macvlan struct {
	netif.Inside
	MAC    mac.Address `json:"mac"`
	MTU    int         `json:"mtu"` // bytes
	Parent string      `json:"parent"`
	Temp   string      `json:"temp"` // name until it is in the node
}

// Kind implements step.Step.
func (m *Macvlan) Kind() string { return "link.macvlan" }

func (m *Macvlan) String() string {
	return fmt.Sprintf("%s %s, mtu %d, on %s", m.If, m.MAC, m.MTU, m.Parent)
}

// Do makes the link in the node under a temporary name and renames it there: kernels before 6.13 look for a new link's
// name in the namespace of the caller, where the host may have its own eth0.
func (m *Macvlan) Do(context.Context) error {
	r, err := m.Open()
	if err != nil {
		return err
	}
	defer r.Close()
	h, err := netif.Host()
	if err != nil {
		return err
	}
	defer h.Close()
	parent, err := netif.ByName(h, m.Parent)
	if err != nil {
		return fmt.Errorf("find link %s: %w", m.Parent, err)
	}
	if parent == nil {
		return refuse.NotFoundf("no link %s on this host", m.Parent)
	}
	if l, err := netif.ByName(r.Handle, m.If); err != nil || m.isOurs(l) { // made already, and not lost with its parent
		return err
	}
	if err := m.remove(r.Handle, m.Temp); err != nil { // of a Do that was killed before it renamed the link
		return err
	}
	a := netif.Attrs(m.Temp, m.MTU, m.MAC)
	a.ParentIndex, a.Namespace = parent.Attrs().Index, netlink.NsFd(r.NS.Fd())
	if err := h.LinkAdd(&netlink.Macvlan{LinkAttrs: a, Mode: netlink.MACVLAN_MODE_BRIDGE}); err != nil {
		return fmt.Errorf("make link %s on %s: %w", m.If, m.Parent, err)
	}
	fault.Point("macvlan made")
	l, err := r.LinkByName(m.Temp)
	if err != nil {
		return fmt.Errorf("find link %s in the node: %w", m.Temp, err)
	}
	if err := r.LinkSetName(l, m.If); err != nil {
		return fmt.Errorf("name link %s in the node %s: %w", m.Temp, m.If, err)
	}
	return nil
}

// remove removes the link, which has one of these names.
func (m *Macvlan) remove(h *netlink.Handle, names ...string) error {
	for _, name := range names {
		l, err := netif.ByName(h, name)
		if err != nil {
			return fmt.Errorf("find link %s in the node: %w", name, err)
		}
		if m.isOurs(l) {
			return netif.Delete(h, l)
		}
	}
	return nil
}

// Verify finds the link in the node; Configure reads the rest back.
func (m *Macvlan) Verify(context.Context) error {
	return m.On(func(_ *netif.Socket, l netlink.Link) error {
		if !m.isOurs(l) {
			return fmt.Errorf("%s in the node is a %s with MAC %s, not a macvlan with %s", m.If, l.Type(), netif.MAC(l), m.MAC)
		}
		return nil
	})
}

// Undo removes the link. If the node's namespace is gone, so is the link.
func (m *Macvlan) Undo(context.Context) error {
	return m.IfThere(func(r *netif.Socket) error { return m.remove(r.Handle, m.Temp, m.If) })
}

func (m *Macvlan) isOurs(l netlink.Link) bool {
	return l != nil && l.Type() == "macvlan" && netif.MAC(l) == m.MAC
}
