package sriov

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"time"

	"github.com/vishvananda/netlink"

	"berth/internal/host/netif"
	"berth/internal/sys/fault"
	"berth/internal/sys/mac"
)

// Configure prepares a claimed virtual function for the node, while it is on the host: it sets the MAC on the adapter
// and on the link, sets the VLAN, switches the spoof check on and trust off. Undo restores the previous settings.
type Configure struct {
	Claimed
	PF   string      `json:"pf"`
	MAC  mac.Address `json:"mac"`
	VLAN int         `json:"vlan,omitempty"` // 0: none; the node neither sees nor chooses the tag

	Admin    Admin          `json:"admin"`    // the adapter's settings for it before
	Original netif.Original `json:"original"` // its link before
}

// vfTime is how long a VF may take to be on the host again after its driver was rebound or its node ended.
const vfTime = 5 * time.Second

// Kind implements step.Step.
func (c *Configure) Kind() string { return "sriov.configure" }

func (c *Configure) String() string {
	s := fmt.Sprintf("%s on %s: MAC %s", c.Owner.If, c.PF, c.MAC)
	if c.VLAN != 0 {
		s += fmt.Sprintf(", vlan %d", c.VLAN)
	}
	return s + ", spoof check on, trust off"
}

// Prepare records the settings to which Undo restores the function.
func (c *Configure) Prepare(ctx context.Context) error {
	if err := c.prepare(); err != nil {
		return err
	}
	h, err := netif.Host()
	if err != nil {
		return err
	}
	defer h.Close()
	pf, _, now, err := c.vf(h)
	if err != nil {
		return err
	}
	c.Admin = now
	l, err := await(ctx, h, c.Lease.PCI, vfTime)
	if err != nil {
		return err
	}
	if l == nil {
		return fmt.Errorf("virtual function %s of %s has no link on the host", c.Lease.PCI, pf.Name)
	}
	c.Original, err = netif.Record(h, l)
	return err
}

// vf reads the virtual function, its adapter, and the settings that the adapter has for it.
func (c *Configure) vf(h *netlink.Handle) (pf PF, vf VF, now Admin, err error) {
	if pf, vf, err = Of(Sys, c.Lease.PCI); err == nil {
		now, err = readAdmin(h, pf.Name, vf.Index)
	}
	return pf, vf, now, err
}

// Do sets everything. Settings that are already in place stay. The VF may be in the node.
func (c *Configure) Do(ctx context.Context) error {
	h, err := netif.Host()
	if err != nil {
		return err
	}
	defer h.Close()
	pf, vf, err := Of(Sys, c.Lease.PCI)
	if err != nil {
		return err
	}
	if err := c.Leases.Reserve(c.Lease, c.Admin.MAC, c.Original.MAC); err != nil {
		return err
	}
	fault.Point("VF's MACs reserved")
	if err := c.wanted().Set(h, pf.Name, vf.Index); err != nil {
		return err
	}
	if err := adapterUp(h, pf.Name); err != nil {
		return err
	}
	l, err := Link(h, c.Lease.PCI)
	if err != nil || l == nil && vf.Driver != "" { // the VF is in the node
		return err
	}
	_, err = setVFMAC(ctx, h, c.Lease.PCI, c.MAC)
	return err
}

// adapterUp sets an adapter up, for example one that a reload of its driver left down. The virtual functions pass nothing
// while it is down.
func adapterUp(h *netlink.Handle, pf string) error {
	l, err := h.LinkByName(pf)
	if err != nil {
		return fmt.Errorf("find adapter %s: %w", pf, err)
	}
	if netif.IsUp(l) {
		return nil
	}
	if err := h.LinkSetUp(l); err != nil {
		return fmt.Errorf("set adapter %s up: %w", pf, err)
	}
	fault.Point("adapter set up")
	return nil
}

// wanted returns the settings that the adapter shall keep for the VF. Rates are enforced by a qdisc: see package shape.
func (c *Configure) wanted() Admin {
	return Admin{MAC: c.MAC, VLAN: c.VLAN, SpoofChk: true, MaxTxRate: c.Admin.MaxTxRate, State: c.Admin.State}
}

// setVFMAC gives a VF's link the MAC that the adapter keeps for the VF, and returns the link. Drivers differ: some
// follow the adapter a moment later, some take the MAC from the link, and some (igbvf) only follow after a rebind.
func setVFMAC(ctx context.Context, h *netlink.Handle, pci string, want mac.Address) (netlink.Link, error) {
	for range 3 {
		l, err := Link(h, pci)
		if err != nil {
			return nil, err
		}
		if l != nil && netif.MAC(l) != want {
			_ = h.LinkSetHardwareAddr(l, want.HardwareAddr()) // checked below; a driver that refuses is rebound
			fault.Point("VF's link has a MAC")
			if l, err = Link(h, pci); err != nil {
				return nil, err
			}
		}
		if l != nil && netif.MAC(l) == want {
			return l, nil
		}
		if err := rebind(Sys, pci); err != nil {
			return nil, err
		}
		if _, err := await(ctx, h, pci, vfTime); err != nil {
			return nil, err
		}
	}
	l, err := Link(h, pci)
	if err == nil && (l == nil || netif.MAC(l) != want) {
		err = fmt.Errorf("virtual function %s does not take MAC %s, though its driver was bound anew", pci, want)
	}
	return l, err
}

// Verify reads back the adapter's settings, and the link's MAC while it is on the host. Move verifies it in the node.
func (c *Configure) Verify(context.Context) error {
	h, err := netif.Host()
	if err != nil {
		return err
	}
	defer h.Close()
	pf, vf, now, err := c.vf(h)
	if err != nil {
		return err
	}
	if want := c.wanted(); !want.Holds(now) {
		return fmt.Errorf("virtual function %d of %s has %s, not %s", vf.Index, pf.Name, now, want)
	}
	l, err := Link(h, c.Lease.PCI)
	if err == nil && l != nil && netif.MAC(l) != c.MAC {
		err = fmt.Errorf("%s, virtual function %d of %s, has MAC %s, not %s", l.Attrs().Name, vf.Index, pf.Name, netif.MAC(l), c.MAC)
	}
	return err
}

// Undo restores the VF, which Move brought home. It leaves a VF alone that belongs to another claim or no longer
// exists.
func (c *Configure) Undo(ctx context.Context) error {
	if c.Original.Name == "" || !c.Held() { // Prepare was not reached, or the VF is another claim's
		return nil
	}
	pf, vf, err := Of(Sys, c.Lease.PCI)
	if errors.Is(err, fs.ErrNotExist) { // the adapter's driver was unloaded, and the virtual functions with it
		return nil
	}
	if err != nil {
		return err
	}
	h, err := netif.Host()
	if err != nil {
		return err
	}
	defer h.Close()
	if err := c.Admin.Set(h, pf.Name, vf.Index); err != nil {
		return err
	}
	l, err := Link(h, c.Lease.PCI)
	if err != nil {
		return err
	}
	if l == nil { // a killed rebind left it without a driver, or the driver was unloaded
		if err := bind(Sys, c.Lease.PCI); errors.Is(err, errNoDriver) {
			return nil
		} else if err != nil {
			return err
		}
	}
	back := c.Original
	if back.MAC, err = c.restoreMAC(ctx, h); err != nil {
		return err
	}
	if l, err = await(ctx, h, c.Lease.PCI, vfTime); err != nil || l == nil {
		return err
	}
	return back.Restore(h, l)
}

// restoreMAC gives the link its original MAC back and returns the link's MAC then. If the driver does not accept the
// original, that is the adapter's, or a random one if the adapter leaves the choice to the driver.
func (c *Configure) restoreMAC(ctx context.Context, h *netlink.Handle) (mac.Address, error) {
	l, err := setVFMAC(ctx, h, c.Lease.PCI, c.Original.MAC)
	if l == nil {
		return mac.Address{}, err
	}
	now := netif.MAC(l)
	if err != nil && now != c.Admin.MAC && c.Admin.MAC != mac.Zeros {
		return mac.Address{}, err
	}
	return now, nil
}
