package link

import (
	"context"
	"fmt"
	"net"

	"github.com/vishvananda/netlink"

	"berth/internal/refuse"
	"berth/internal/step"
)

// Macvlan is an interface of a node that shares an adapter of the host under a MAC of its own. Nodes on one adapter
// reach each other and the network beyond it, but the kernel separates them from the host itself.
type Macvlan struct {
	Inside
	MAC    string `json:"mac"`
	MTU    int    `json:"mtu"` // bytes
	Parent string `json:"parent"`
	Temp   string `json:"temp"` // name until it is in the node
}

// Kind implements step.Step.
func (m *Macvlan) Kind() string { return "link.macvlan" }

func (m *Macvlan) String() string {
	return fmt.Sprintf("%s %s, mtu %d, on %s", m.If, m.MAC, m.MTU, m.Parent)
}

// Do makes the link in the node under a temporary name and renames it there: kernels before 6.13 look for a new link's
// name in the namespace of the caller, where the host may have its own eth0.
func (m *Macvlan) Do(context.Context) error {
	mac, err := net.ParseMAC(m.MAC)
	if err != nil {
		return fmt.Errorf("make link %s: %w", m.If, err)
	}
	r, err := m.enter()
	if err != nil {
		return err
	}
	defer r.Close()
	h, err := host()
	if err != nil {
		return err
	}
	defer h.Close()
	parent, err := byName(h, m.Parent)
	if err != nil {
		return fmt.Errorf("find link %s: %w", m.Parent, err)
	}
	if parent == nil {
		return refuse.NotFoundf("no link %s on this host", m.Parent)
	}
	if l, err := byName(r.Handle, m.If); err != nil || m.isOurs(l) { // made already, and not lost with its parent
		return err
	}
	if err := m.sweep(r.Handle); err != nil {
		return err
	}
	a := attrs(m.Temp, m.MTU, mac)
	a.ParentIndex, a.Namespace = parent.Attrs().Index, netlink.NsFd(r.ns.Fd())
	if err := h.LinkAdd(&netlink.Macvlan{LinkAttrs: a, Mode: netlink.MACVLAN_MODE_BRIDGE}); err != nil {
		return fmt.Errorf("make link %s on %s: %w", m.If, m.Parent, err)
	}
	step.Fault("macvlan made")
	l, err := r.LinkByName(m.Temp)
	if err != nil {
		return fmt.Errorf("find link %s in the node: %w", m.Temp, err)
	}
	if err := r.LinkSetName(l, m.If); err != nil {
		return fmt.Errorf("name link %s in the node %s: %w", m.Temp, m.If, err)
	}
	return nil
}

// sweep removes a link that a killed Do had not renamed yet.
func (m *Macvlan) sweep(h *netlink.Handle) error {
	l, err := byName(h, m.Temp)
	if err != nil {
		return fmt.Errorf("find link %s in the node: %w", m.Temp, err)
	}
	if !m.isOurs(l) {
		return nil
	}
	return remove(h, l)
}

// Verify finds the link in the node; Configure reads the rest back.
func (m *Macvlan) Verify(context.Context) error {
	r, err := m.enter()
	if err != nil {
		return err
	}
	defer r.Close()
	l, err := m.link(r)
	if err == nil && !m.isOurs(l) {
		err = fmt.Errorf("%s in the node is a %s with MAC %s, not a macvlan with %s", m.If, l.Type(), l.Attrs().HardwareAddr, m.MAC)
	}
	return err
}

// Undo removes the link. If the node's namespace is gone, so is the link.
func (m *Macvlan) Undo(context.Context) error {
	r, err := m.enter()
	if gone(err) {
		return nil
	}
	if err != nil {
		return err
	}
	defer r.Close()
	for _, name := range []string{m.Temp, m.If} {
		l, err := byName(r.Handle, name)
		if err != nil {
			return fmt.Errorf("find link %s in the node: %w", name, err)
		}
		if m.isOurs(l) {
			return remove(r.Handle, l)
		}
	}
	return nil
}

func (m *Macvlan) isOurs(l netlink.Link) bool {
	return l != nil && l.Type() == "macvlan" && l.Attrs().HardwareAddr.String() == m.MAC
}
