package link

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base32"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"berth/internal/host/netif"
	"berth/internal/sys/fault"
	"berth/internal/sys/mac"
	"berth/internal/sys/refuse"
)

// Veth is an interface of a node that is a port of a bridge: a veth pair with one end in the node and the other on the
// host.
type Veth struct {
	netif.Inside
	Node    string      `json:"node"`
	MAC     mac.Address `json:"mac"`            // of the node's end
	MTU     int         `json:"mtu"`            // of the node's end, bytes
	Bridge  string      `json:"bridge"`         // name
	Own     bool        `json:"own"`            // the bridge is Berth's, not the user's
	Hub     netif.Hub   `json:"hub,omitempty"`  // namespace of an own bridge
	VLAN    int         `json:"vlan,omitempty"` // of the port on a user's bridge, untagged; 0: the bridge's default
	HostMTU int         `json:"hostmtu"`        // of the host's end: a smaller one would lower the MTU of a user's bridge
	HostIf  string      `json:"host_ifname"`
	Lock    string      `json:"host_lock"` // file of the host-wide lock

	// HostMAC is random and identifies this link, also if a killed Do did not record its index. Its first byte is high:
	// a bridge takes the lowest MAC of its ports, and must not take this one.
	HostMAC mac.Address `json:"host_mac,omitzero"`
	Index   int         `json:"index,omitempty"` // of the host's end
}

// Kind implements step.Step.
func (v *Veth) Kind() string { return "link.veth" }

func (v *Veth) String() string {
	s := fmt.Sprintf("%s %s, mtu %d, to bridge %s", v.If, v.MAC, v.MTU, v.Bridge)
	if v.VLAN != 0 {
		s += fmt.Sprintf(", VLAN %d", v.VLAN)
	}
	return s
}

// Prepare chooses the MAC that identifies the link.
func (v *Veth) Prepare(ctx context.Context) error {
	own := net.HardwareAddr{0xfe, 0, 0, 0, 0, 0}
	_, _ = rand.Read(own[1:]) // crypto/rand never fails
	v.HostMAC = mac.Of(own)
	return v.Inside.Prepare(ctx)
}

// Do makes the pair, with its inner end directly in the node under its final name, and makes the other end a port. A
// pair that exists already, for example because its bridge was lost, is connected again.
func (v *Veth) Do(ctx context.Context) error {
	r, err := v.Open()
	if err != nil {
		return err
	}
	defer r.Close()
	if v.Own { // no other process may remove the bridge before it has this port
		lock, err := netif.Lock(ctx, v.Lock)
		if err != nil {
			return err
		}
		defer lock.Close()
	}
	h, err := v.Hub.Ensure()
	if err != nil {
		return err
	}
	defer h.Close()
	bridge := 0
	if !v.Own {
		if bridge, err = v.bridge(h); err != nil {
			return err
		}
	}
	l, err := v.find(h)
	if err != nil {
		return err
	}
	if l == nil {
		if l, err = v.create(h, r.NS); err != nil {
			return err
		}
	}
	v.Index = l.Attrs().Index
	fault.Point("veth made")
	if err := netif.NoLinkLocal(h, l); err != nil {
		return err
	}
	if err := h.LinkSetAlias(l, "berth: "+v.Node+"/"+v.If); err != nil {
		return fmt.Errorf("mark link %s: %w", v.HostIf, err)
	}
	if v.Own {
		err = plug(h, l, v.Bridge)
	} else {
		err = v.join(h, l, bridge)
	}
	if err != nil {
		return err
	}
	fault.Point("veth on its bridge")
	if err := h.LinkSetUp(l); err != nil {
		return fmt.Errorf("set link %s up: %w", v.HostIf, err)
	}
	return nil
}

func (v *Veth) join(h *netlink.Handle, l netlink.Link, bridge int) error {
	err := h.LinkSetMasterByIndex(l, bridge)
	if errors.Is(err, unix.EXFULL) {
		return fullBridge(v.If, v.Bridge)
	}
	if err != nil {
		return fmt.Errorf("make link %s a port of bridge %s: %w", v.HostIf, v.Bridge, err)
	}
	if v.VLAN == 0 {
		return nil
	}
	fault.Point("veth on its bridge, in no VLAN")
	return tag(h, l, v.VLAN)
}

// fullBridge returns the error for a user's bridge without a free port.
func fullBridge(ifname, bridge string) error {
	return refuse.Busyf("network %s: a bridge takes %d ports, and %s has them all: remove links from it, name another bridge as parent, "+
		"or leave parent out where the nodes need only each other", ifname, mostPorts, bridge)
}

// bridge returns the index of the user's bridge.
func (v *Veth) bridge(h *netlink.Handle) (int, error) {
	l, err := netif.ByName(h, v.Bridge)
	if err != nil {
		return 0, fmt.Errorf("find bridge %s: %w", v.Bridge, err)
	}
	if l == nil || l.Type() != "bridge" {
		return 0, refuse.NotFoundf("bridge %s is gone", v.Bridge)
	}
	return l.Attrs().Index, nil
}

func (v *Veth) create(h *netlink.Handle, ns *os.File) (netlink.Link, error) {
	l := &netlink.Veth{
		LinkAttrs:        netif.Attrs(v.HostIf, v.HostMTU, v.HostMAC),
		PeerName:         v.If,
		PeerMTU:          uint32(v.MTU),
		PeerTxQLen:       -1,
		PeerHardwareAddr: v.MAC.HardwareAddr(),
		PeerNamespace:    netlink.NsFd(ns.Fd()),
	}
	if err := h.LinkAdd(l); errors.Is(err, unix.EEXIST) {
		return nil, refuse.Busyf("link %s is on the host already, or %s in the node: %w", v.HostIf, v.If, err)
	} else if err != nil {
		return nil, fmt.Errorf("make link %s in the node: %w", v.If, err)
	}
	return l, nil
}

// Verify reads the host's end back; Configure reads the node's.
func (v *Veth) Verify(context.Context) error {
	h, err := v.Hub.Open()
	if err != nil {
		return err
	}
	defer h.Close()
	l, err := v.find(h)
	if err != nil {
		return err
	}
	if l == nil {
		return fmt.Errorf("link %s is gone", v.HostIf)
	}
	master, err := netif.ByIndex(h, l.Attrs().MasterIndex)
	if err != nil {
		return fmt.Errorf("find bridge of %s: %w", v.HostIf, err)
	}
	switch a := l.Attrs(); {
	case master == nil || !v.Own && master.Attrs().Name != v.Bridge || v.Own && !isOwnBridge(master):
		return fmt.Errorf("link %s is no port of bridge %s", a.Name, v.Bridge)
	case !netif.IsUp(l):
		return fmt.Errorf("link %s is down", a.Name)
	case a.MTU != v.HostMTU:
		return fmt.Errorf("link %s has MTU %d, not %d", a.Name, a.MTU, v.HostMTU)
	case v.VLAN != 0:
		return checkTag(h, master, l, v.VLAN)
	}
	return nil
}

// Undo removes the pair, even if the node's namespace does not exist any more.
func (v *Veth) Undo(ctx context.Context) error {
	h, err := v.Hub.Open()
	if netif.Absent(err) {
		return nil
	}
	if err != nil {
		return err
	}
	defer h.Close()
	l, err := v.findDying(ctx, h)
	if err != nil || l == nil {
		return err
	}
	return netif.Delete(h, l)
}

// findDying is find, but if the node's namespace is ending, it first gives the kernel a moment to remove the link. The
// kernel takes about 10 ms for all links of many nodes at once; deleting one link takes 20 ms (an RCU barrier).
func (v *Veth) findDying(ctx context.Context, h *netlink.Handle) (netlink.Link, error) {
	r, err := v.Open()
	if err == nil {
		r.Close()
		return v.find(h)
	}
	for end := time.Now().Add(25 * time.Millisecond); ; {
		l, err := v.find(h)
		if err != nil || l == nil || time.Now().After(end) || ctx.Err() != nil {
			return l, err
		}
		time.Sleep(500 * time.Microsecond)
	}
}

// find returns the host's end, identified by its random MAC and not by its name; nil if there is none.
func (v *Veth) find(h *netlink.Handle) (netlink.Link, error) {
	l, err := netif.ByIndex(h, v.Index)
	if err == nil && !v.isOurs(l) {
		l, err = netif.ByName(h, v.HostIf)
	}
	if err != nil {
		return nil, fmt.Errorf("find link %s: %w", v.HostIf, err)
	}
	if !v.isOurs(l) {
		return nil, nil
	}
	return l, nil
}

func (v *Veth) isOurs(l netlink.Link) bool {
	return l != nil && l.Type() == "veth" && netif.MAC(l) == v.HostMAC
}

// hostName returns the host's name for an interface of a node: "berth-" and 45 bits of a hash, which fills the 15 bytes
// of a link's name. The hash includes the name of the host-only bridge, since nodes under different roots may share a
// name.
func hostName(bridge, node, ifname string) string {
	sum := sha256.Sum256([]byte("berth link 1\n" + bridge + "\n" + node + "\n" + ifname + "\n"))
	return netif.PortPrefix + strings.ToLower(base32.StdEncoding.EncodeToString(sum[:]))[:9]
}
