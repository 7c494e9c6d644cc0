package sriov

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"os"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"berth/internal/host/netif"
	"berth/internal/sys/fault"
	"berth/internal/sys/mac"
)

// Move moves the link of a claimed virtual function into the node. The link is identified by its PCI address, because
// drivers, udev and the kernel change its name and index.
type Move struct {
	netif.Inside
	Claimed
	MAC mac.Address `json:"mac"` // the MAC that Verify expects
	MTU int         `json:"mtu"` // bytes
}

// Kind implements step.Step.
func (m *Move) Kind() string { return "sriov.move" }

func (m *Move) String() string {
	return fmt.Sprintf("%s into the node, mtu %d", m.If, m.MTU)
}

// Prepare records the VF and the namespace.
func (m *Move) Prepare(ctx context.Context) error {
	if err := m.Claimed.prepare(); err != nil {
		return err
	}
	return m.Inside.Prepare(ctx)
}

// Do moves the link, unless it is in the node already.
func (m *Move) Do(ctx context.Context) error {
	r, err := m.Open()
	if err != nil {
		return err
	}
	defer r.Close()
	l, err := Link(r.Handle, m.Lease.PCI)
	if err != nil {
		return err
	}
	if l == nil {
		if err := m.lend(ctx, r); err != nil {
			return err
		}
	}
	if l, err = m.Link(r); err != nil {
		return err
	}
	return netif.Set(r.Handle, l, mac.Address{}, m.MTU)
}

func (m *Move) lend(ctx context.Context, r *netif.Socket) error {
	h, err := netif.Host()
	if err != nil {
		return err
	}
	defer h.Close()
	l, err := await(ctx, h, m.Lease.PCI, vfTime)
	if err != nil {
		return err
	}
	if l == nil {
		return fmt.Errorf("virtual function %s has no link on the host", m.Lease.PCI)
	}
	a := l.Attrs()
	if netif.IsUp(l) { // udev or a network manager may have set it up; its addresses do not move along
		if err := h.LinkSetDown(l); err != nil {
			return fmt.Errorf("set link %s down: %w", a.Name, err)
		}
	}
	for _, alt := range a.AltNames { // they could clash with another link's in the node
		if err := h.LinkDelAltName(l, alt); err != nil && !errors.Is(err, unix.ENOENT) {
			return fmt.Errorf("take alternative name %s off %s: %w", alt, a.Name, err)
		}
		fault.Point("alternative name taken")
	}
	if err := netif.Move(nil, a.Index, r.NS, m.If); err != nil {
		return fmt.Errorf("move link %s into the node as %s: %w", a.Name, m.If, err)
	}
	fault.Point("VF moved")
	return nil
}

// Verify finds the link in the node.
func (m *Move) Verify(context.Context) error {
	return m.On(func(_ *netif.Socket, l netlink.Link) error {
		a := l.Attrs()
		if a.ParentDev != m.Lease.PCI || netif.MAC(l) != m.MAC {
			return fmt.Errorf("%s in the node is device %s with MAC %s, not virtual function %s with %s", m.If, a.ParentDev, a.HardwareAddr, m.Lease.PCI, m.MAC)
		}
		return nil
	})
}

// Undo brings the link back to the host, from the node or from where the kernel has put it. Configure restores it.
func (m *Move) Undo(ctx context.Context) error {
	if !m.Held() {
		return nil
	}
	h, err := netif.Host()
	if err != nil {
		return err
	}
	defer h.Close()
	if err := m.fetch(h); err != nil {
		return err
	}
	if _, vf, err := Of(Sys, m.Lease.PCI); errors.Is(err, fs.ErrNotExist) || err == nil && vf.Driver == "" {
		return nil // the adapter's driver was unloaded, or the VF's: there is no link
	}
	// If the namespace ended without Berth, the kernel returns the link by itself, a moment later.
	l, err := await(ctx, h, m.Lease.PCI, vfTime)
	if err != nil || l != nil {
		return err
	}
	return rebind(Sys, m.Lease.PCI) // the new link is on the host, wherever the old one was
}

// fetch moves the link from the node's namespace to the host's, if the link is there.
func (m *Move) fetch(h *netlink.Handle) error {
	r, err := m.Open()
	if netif.Absent(err) {
		return nil
	}
	if err != nil {
		return err
	}
	defer r.Close()
	l, err := Link(r.Handle, m.Lease.PCI)
	if err != nil || l == nil {
		return err
	}
	home, err := os.Open(netif.Self)
	if err != nil {
		return fmt.Errorf("open the host's network namespace: %w", err)
	}
	defer home.Close()
	name := transitName(m.Lease)
	if other, err := netif.ByName(h, name); err != nil || other != nil {
		return errors.Join(err, fmt.Errorf("bring link %s home: there is a %s on the host", m.If, name))
	}
	if err := netif.Move(r.NS, l.Attrs().Index, home, name); err != nil {
		return fmt.Errorf("bring link %s home as %s: %w", m.If, name, err)
	}
	fault.Point("VF brought home")
	return nil
}

// transitName returns the unique name of a VF's link on its way back to the host.
func transitName(l Lease) string {
	return fmt.Sprintf("berth-%x", sha256.Sum256([]byte(l.PCI+l.Token)))[:14]
}
