package link

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"berth/internal/host/netif"
	"berth/internal/sys/fault"
	"berth/internal/sys/mac"
	"berth/internal/sys/refuse"
)

// VLAN is a VLAN device on an adapter of the host. The macvlans of all nodes with this adapter and id are on it. The first
// such node makes the device, and the last one removes it. A device that another program made is used and never removed.
type VLAN struct {
	Node   string `json:"node"`
	If     string `json:"ifname"` // the node's interface above it
	Parent string `json:"parent"` // the adapter
	ID     int    `json:"id"`
	Device string `json:"device"`
	Users  string `json:"users"`     // folder with a folder per device, which has a file per user
	User   string `json:"user"`      // the file's name
	Lock   string `json:"host_lock"` // file of the host-wide lock
}

// vlanGroup marks Berth's VLAN devices. The kernel takes a link's group in the message that makes the link, so a device
// is recognizable from the start.
const vlanGroup = 0x62727468

// Kind implements step.Step.
func (v *VLAN) Kind() string { return "link.vlan" }

func (v *VLAN) String() string {
	return fmt.Sprintf("%s, VLAN %d of %s, shared; made unless it is there", v.Device, v.ID, v.Parent)
}

// vlanDevice returns the name of Berth's VLAN device: PARENT.ID where that fits into the 15 bytes of a link's name.
func vlanDevice(parent string, id int) string {
	name := fmt.Sprintf("%s.%d", parent, id)
	if len(name) < unix.IFNAMSIZ {
		return name
	}
	return hostName("vlan", parent, name)
}

// Do makes the device unless it is there, and notes the node as a user first.
func (v *VLAN) Do(ctx context.Context) error {
	lock, err := netif.Lock(ctx, v.Lock)
	if err != nil {
		return err
	}
	defer lock.Close()
	h, err := netif.Host()
	if err != nil {
		return err
	}
	defer h.Close()
	parent, err := netif.ByName(h, v.Parent)
	if err != nil {
		return fmt.Errorf("find link %s: %w", v.Parent, err)
	}
	if parent == nil {
		return refuse.NotFoundf("no link %s on this host", v.Parent)
	}
	l, err := v.find(h, parent)
	if err != nil {
		return err
	}
	if l == nil { // users that are noted had an earlier device of this name
		if err := os.RemoveAll(v.folder()); err != nil {
			return fmt.Errorf("forget the users of %s: %w", v.Device, err)
		}
	}
	if err := v.note(); err != nil {
		return err
	}
	fault.Point("user of the VLAN noted")
	if l == nil {
		if l, err = v.make(h, parent); err != nil {
			return err
		}
		fault.Point("VLAN made")
	}
	if !isOwnVLAN(l) || netif.IsUp(l) {
		return nil
	}
	if err := netif.NoLinkLocal(h, l); err != nil {
		return err
	}
	if err := h.LinkSetAlias(l, fmt.Sprintf("berth: nodes on VLAN %d of %s", v.ID, v.Parent)); err != nil {
		return fmt.Errorf("mark link %s: %w", v.Device, err)
	}
	if err := h.LinkSetUp(l); err != nil {
		return fmt.Errorf("set link %s up: %w", v.Device, err)
	}
	return nil
}

func (v *VLAN) make(h *netlink.Handle, parent netlink.Link) (netlink.Link, error) {
	a := netif.Attrs(v.Device, 0, mac.Address{})
	a.ParentIndex, a.Group = parent.Attrs().Index, vlanGroup
	err := h.LinkAdd(&netlink.Vlan{LinkAttrs: a, VlanId: v.ID})
	if errors.Is(err, unix.EEXIST) {
		return nil, refuse.Busyf("link %s is there and not VLAN %d of %s, or that VLAN's device is in another network namespace: %w", v.Device, v.ID, v.Parent, err)
	}
	if err != nil {
		return nil, fmt.Errorf("make VLAN %d of %s: %w", v.ID, v.Parent, err)
	}
	return h.LinkByName(v.Device)
}

// find returns the device of this VLAN on the host; nil if there is none. The kernel makes only one for each adapter and id.
func (v *VLAN) find(h *netlink.Handle, parent netlink.Link) (netlink.Link, error) {
	links, err := netif.List(h)
	if err != nil {
		return nil, err
	}
	for _, l := range links {
		if netif.Lower(l) != parent.Attrs().Index || vlanID(l) != v.ID {
			continue
		}
		if name := l.Attrs().Name; name != v.Device {
			return nil, refuse.Busyf("VLAN %d of %s is %s now, and was not when this was planned: try again", v.ID, v.Parent, name)
		}
		return l, nil
	}
	return nil, nil
}

// vlanID returns the id of a VLAN device (802.1Q); 0 for other links.
func vlanID(l netlink.Link) int {
	if v, ok := l.(*netlink.Vlan); ok && v.VlanProtocol == netlink.VLAN_PROTOCOL_8021Q {
		return v.VlanId
	}
	return 0
}

func isOwnVLAN(l netlink.Link) bool { return l.Attrs().Group == vlanGroup && vlanID(l) != 0 }

func (v *VLAN) folder() string { return filepath.Join(v.Users, v.Device) }

func (v *VLAN) note() error {
	err := os.MkdirAll(v.folder(), 0o755)
	if err == nil {
		err = os.WriteFile(filepath.Join(v.folder(), v.User), []byte(v.Node+"/"+v.If+"\n"), 0o644)
	}
	if err != nil {
		return fmt.Errorf("note a user of %s: %w", v.Device, err)
	}
	return nil
}

// Verify finds the device, and the node among its users.
func (v *VLAN) Verify(context.Context) error {
	h, err := netif.Host()
	if err != nil {
		return err
	}
	defer h.Close()
	parent, err := h.LinkByName(v.Parent)
	if err != nil {
		return fmt.Errorf("find link %s: %w", v.Parent, err)
	}
	l, err := v.find(h, parent)
	if err != nil {
		return err
	}
	if l == nil || !netif.IsUp(l) {
		return fmt.Errorf("link %s is gone or down", v.Device)
	}
	_, err = os.Stat(filepath.Join(v.folder(), v.User))
	return err
}

// Undo removes the device if this node was its last user and Berth made it. A device on which the host has built links stays.
func (v *VLAN) Undo(ctx context.Context) error {
	if v.Device == "" {
		return nil
	}
	lock, err := netif.Lock(ctx, v.Lock)
	if err != nil {
		return err
	}
	defer lock.Close()
	if err := os.Remove(filepath.Join(v.folder(), v.User)); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("forget a user of %s: %w", v.Device, err)
	}
	fault.Point("user of the VLAN forgotten")
	if others, err := os.ReadDir(v.folder()); err == nil && len(others) > 0 {
		return nil
	}
	if err := v.remove(); err != nil {
		return err
	}
	fault.Point("VLAN removed")
	for _, dir := range []string{v.folder(), v.Users} { // the second one only if it is empty
		if err := os.Remove(dir); err != nil && !errors.Is(err, os.ErrNotExist) && !errors.Is(err, unix.ENOTEMPTY) {
			return fmt.Errorf("forget the users of %s: %w", v.Device, err)
		}
	}
	return nil
}

func (v *VLAN) remove() error {
	h, err := netif.Host()
	if err != nil {
		return err
	}
	defer h.Close()
	l, err := netif.ByName(h, v.Device)
	if err != nil {
		return fmt.Errorf("find link %s: %w", v.Device, err)
	}
	if l == nil || !isOwnVLAN(l) {
		return nil
	}
	links, err := netif.List(h)
	if err != nil || len(netif.Uppers(links)[l.Attrs().Index]) > 0 {
		return err
	}
	return netif.Delete(h, l)
}

// probeVLAN says why this kernel cannot make VLAN devices; "" if it can. It asks for a device without a lower link, which
// no kernel makes: one that knows VLANs misses the link.
func probeVLAN(h *netlink.Handle) string {
	err := h.LinkAdd(&netlink.Vlan{LinkAttrs: netif.Attrs("berth-vlan", 0, mac.Address{}), VlanId: 1})
	if errors.Is(err, unix.EOPNOTSUPP) {
		return "it does not know VLAN devices (CONFIG_VLAN_8021Q)"
	}
	return ""
}

// tag makes a port of a bridge that filters VLANs an access port of one VLAN: what comes from the node is in this VLAN,
// and nothing else reaches the node. The port is down, or was in this VLAN before.
func tag(h *netlink.Handle, l netlink.Link, id int) error {
	all, err := h.BridgeVlanList()
	if err != nil {
		return fmt.Errorf("list the VLANs of ports: %w", err)
	}
	for _, now := range all[int32(l.Attrs().Index)] {
		if int(now.Vid) == id {
			continue
		}
		if err := h.BridgeVlanDel(l, now.Vid, false, false, false, true); err != nil {
			return fmt.Errorf("take link %s out of VLAN %d: %w", l.Attrs().Name, now.Vid, err)
		}
	}
	if err := h.BridgeVlanAdd(l, uint16(id), true, true, false, true); err != nil {
		return fmt.Errorf("put link %s into VLAN %d: %w", l.Attrs().Name, id, err)
	}
	return nil
}

// checkTag reads back what tag did, and that the bridge filters.
func checkTag(h *netlink.Handle, bridge, l netlink.Link, id int) error {
	if !filters(bridge) {
		return fmt.Errorf("bridge %s does not filter VLANs any more", bridge.Attrs().Name)
	}
	all, err := h.BridgeVlanList()
	if err != nil {
		return fmt.Errorf("list the VLANs of ports: %w", err)
	}
	now := all[int32(l.Attrs().Index)]
	if len(now) != 1 || int(now[0].Vid) != id || !now[0].PortVID() || !now[0].EngressUntag() {
		var ids []string
		for _, v := range now {
			ids = append(ids, v.String())
		}
		return fmt.Errorf("link %s is not in VLAN %d alone: %s", l.Attrs().Name, id, strings.Join(ids, ", "))
	}
	return nil
}

// filters reports whether a link is a bridge that keeps VLANs apart.
func filters(l netlink.Link) bool {
	b, ok := l.(*netlink.Bridge)
	return ok && b.VlanFiltering != nil && *b.VlanFiltering
}
