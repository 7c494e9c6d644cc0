package link

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"time"

	"github.com/vishvananda/netlink"

	"berth/internal/sriov"
	"berth/internal/step"
)

// VFConfigure prepares a claimed virtual function for the node, while it is on the host: it sets the MAC on the adapter
// and on the link, sets the VLAN, switches the spoof check on and trust off. Undo restores the previous settings.
type VFConfigure struct {
	Claimed
	PF   string `json:"pf"`
	MAC  string `json:"mac"`
	VLAN int    `json:"vlan,omitempty"` // 0: none; the node neither sees nor chooses the tag

	Admin    sriov.Admin `json:"admin"`    // the adapter's settings for it before
	Original Original    `json:"original"` // its link before
}

// vfTime is how long a VF may take to be on the host again after its driver was rebound or its node ended.
const vfTime = 5 * time.Second

// Kind implements step.Step.
func (c *VFConfigure) Kind() string { return "sriov.configure" }

func (c *VFConfigure) String() string {
	s := fmt.Sprintf("%s on %s: MAC %s", c.Owner.If, c.PF, c.MAC)
	if c.VLAN != 0 {
		s += fmt.Sprintf(", vlan %d", c.VLAN)
	}
	return s + ", spoof check on, trust off"
}

// Prepare records what the host gets back.
func (c *VFConfigure) Prepare(ctx context.Context) error {
	if err := c.prepare(); err != nil {
		return err
	}
	h, err := host()
	if err != nil {
		return err
	}
	defer h.Close()
	pf, vf, err := sriov.Of(sriov.Sys, c.Lease.PCI)
	if err != nil {
		return err
	}
	if c.Admin, err = sriov.ReadAdmin(h, pf.Name, vf.Index); err != nil {
		return err
	}
	l, err := sriov.Await(ctx, h, c.Lease.PCI, vfTime)
	if err != nil {
		return err
	}
	if l == nil {
		return fmt.Errorf("virtual function %s of %s has no link on the host", c.Lease.PCI, pf.Name)
	}
	c.Original, err = record(h, l)
	return err
}

// Do sets everything. Settings that are already in place stay. The VF may be in the node.
func (c *VFConfigure) Do(ctx context.Context) error {
	h, err := host()
	if err != nil {
		return err
	}
	defer h.Close()
	pf, vf, err := sriov.Of(sriov.Sys, c.Lease.PCI)
	if err != nil {
		return err
	}
	if err := c.Leases.Reserve(c.Lease, c.Admin.MAC, c.Original.MAC); err != nil {
		return err
	}
	step.Fault("VF's MACs reserved")
	if err := c.wanted().Set(h, pf.Name, vf.Index); err != nil {
		return err
	}
	if err := adapterUp(h, pf.Name); err != nil {
		return err
	}
	l, err := sriov.Link(h, c.Lease.PCI)
	if err != nil || l == nil && vf.Driver != "" { // the VF is in the node
		return err
	}
	_, err = setVFMAC(ctx, h, c.Lease.PCI, c.MAC)
	return err
}

// adapterUp sets an adapter up that a reload of its driver left down. The adapter was up when the node was started, and
// its virtual functions pass nothing while it is down.
func adapterUp(h *netlink.Handle, pf string) error {
	l, err := h.LinkByName(pf)
	if err != nil {
		return fmt.Errorf("find adapter %s: %w", pf, err)
	}
	if isUp(l) {
		return nil
	}
	if err := h.LinkSetUp(l); err != nil {
		return fmt.Errorf("set adapter %s up: %w", pf, err)
	}
	step.Fault("adapter set up")
	return nil
}

// wanted returns the settings that the adapter shall keep for the VF. Rates are enforced by a qdisc: see Rate.
func (c *VFConfigure) wanted() sriov.Admin {
	return sriov.Admin{MAC: c.MAC, VLAN: c.VLAN, SpoofChk: true, MaxTxRate: c.Admin.MaxTxRate, State: c.Admin.State}
}

// setVFMAC gives a VF's link the MAC that the adapter keeps for the VF, and returns the link. Drivers differ: some
// follow the adapter a moment later, some take the MAC from the link, and some (igbvf) only follow after a rebind.
func setVFMAC(ctx context.Context, h *netlink.Handle, pci, mac string) (netlink.Link, error) {
	hw, err := net.ParseMAC(mac)
	if err != nil {
		return nil, fmt.Errorf("set MAC of virtual function %s: %w", pci, err)
	}
	for range 3 {
		l, err := sriov.Link(h, pci)
		if err != nil {
			return nil, err
		}
		if l != nil && l.Attrs().HardwareAddr.String() != mac {
			_ = h.LinkSetHardwareAddr(l, hw) // checked below; a driver that refuses is rebound
			step.Fault("VF's link has a MAC")
			if l, err = sriov.Link(h, pci); err != nil {
				return nil, err
			}
		}
		if l != nil && l.Attrs().HardwareAddr.String() == mac {
			return l, nil
		}
		if err := sriov.Rebind(sriov.Sys, pci); err != nil {
			return nil, err
		}
		if _, err := sriov.Await(ctx, h, pci, vfTime); err != nil {
			return nil, err
		}
	}
	l, err := sriov.Link(h, pci)
	if err == nil && (l == nil || l.Attrs().HardwareAddr.String() != mac) {
		err = fmt.Errorf("virtual function %s does not take MAC %s, though its driver was bound anew", pci, mac)
	}
	return l, err
}

// Verify reads back the adapter's settings, and the link's MAC while it is on the host. VFMove verifies it in the node.
func (c *VFConfigure) Verify(context.Context) error {
	h, err := host()
	if err != nil {
		return err
	}
	defer h.Close()
	pf, vf, err := sriov.Of(sriov.Sys, c.Lease.PCI)
	if err != nil {
		return err
	}
	now, err := sriov.ReadAdmin(h, pf.Name, vf.Index)
	if err != nil {
		return err
	}
	if want := c.wanted(); !want.Holds(now) {
		return fmt.Errorf("virtual function %d of %s has %s, not %s", vf.Index, pf.Name, now, want)
	}
	l, err := sriov.Link(h, c.Lease.PCI)
	if err == nil && l != nil && l.Attrs().HardwareAddr.String() != c.MAC {
		err = fmt.Errorf("%s, virtual function %d of %s, has MAC %s, not %s", l.Attrs().Name, vf.Index, pf.Name, l.Attrs().HardwareAddr, c.MAC)
	}
	return err
}

// Undo restores the VF, which VFMove brought home. It leaves a VF alone that belongs to another claim or no longer
// exists.
func (c *VFConfigure) Undo(ctx context.Context) error {
	if c.Original.Name == "" || !c.mine() { // Prepare was not reached, or the VF is another claim's
		return nil
	}
	pf, vf, err := sriov.Of(sriov.Sys, c.Lease.PCI)
	if errors.Is(err, fs.ErrNotExist) { // the adapter's driver was unloaded, and the virtual functions with it
		return nil
	}
	if err != nil {
		return err
	}
	h, err := host()
	if err != nil {
		return err
	}
	defer h.Close()
	if err := c.Admin.Set(h, pf.Name, vf.Index); err != nil {
		return err
	}
	l, err := sriov.Link(h, c.Lease.PCI)
	if err != nil {
		return err
	}
	if l == nil { // a killed rebind left it without a driver, or the driver was unloaded
		if err := sriov.Bind(sriov.Sys, c.Lease.PCI); errors.Is(err, sriov.ErrNoDriver) {
			return nil
		} else if err != nil {
			return err
		}
	}
	back := c.Original
	if back.MAC, err = c.restoreMAC(ctx, h); err != nil {
		return err
	}
	if l, err = sriov.Await(ctx, h, c.Lease.PCI, vfTime); err != nil || l == nil {
		return err
	}
	return back.restore(h, l)
}

// restoreMAC gives the link its original MAC back and returns the link's MAC then. If the driver does not accept the
// original, that is the adapter's, or a random one if the adapter leaves the choice to the driver.
func (c *VFConfigure) restoreMAC(ctx context.Context, h *netlink.Handle) (string, error) {
	l, err := setVFMAC(ctx, h, c.Lease.PCI, c.Original.MAC)
	if l == nil {
		return "", err
	}
	mac := l.Attrs().HardwareAddr.String()
	if err != nil && mac != c.Admin.MAC && c.Admin.MAC != "00:00:00:00:00:00" {
		return "", err
	}
	return mac, nil
}
