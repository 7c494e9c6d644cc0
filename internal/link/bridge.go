package link

import (
	"context"
	"crypto/sha256"
	"fmt"
	"net"

	"github.com/vishvananda/netlink"

	"berth/internal/refuse"
	"berth/internal/step"
)

// Bridge is the host-only bridge that the nodes without a parent share. The first of them makes it, the last takes it
// away. It has no address, neither IPv4 nor IPv6: nodes reach each other over it, not the host.
type Bridge struct {
	Lock string `json:"host_lock"` // file of the host-wide lock
	Name string `json:"name"`
}

// Kind implements step.Step.
func (b *Bridge) Kind() string { return "link.bridge" }

func (b *Bridge) String() string {
	return fmt.Sprintf("%s, host-only, made with the first node and gone with the last", b.Name)
}

// Do makes the bridge unless it is there.
func (b *Bridge) Do(ctx context.Context) error {
	lock, err := Lock(ctx, b.Lock)
	if err != nil {
		return err
	}
	defer lock.Close()
	h, err := host()
	if err != nil {
		return err
	}
	defer h.Close()
	_, err = ensureBridge(h, b.Name)
	return err
}

// Verify finds the bridge. It may be gone again: the end of another node takes away a bridge without ports, and
// Veth.Do makes it anew under the same lock as its port.
func (b *Bridge) Verify(context.Context) error { return nil }

// Undo removes the bridge if it is Berth's and has no port left.
func (b *Bridge) Undo(ctx context.Context) error {
	lock, err := Lock(ctx, b.Lock)
	if err != nil {
		return err
	}
	defer lock.Close()
	h, err := host()
	if err != nil {
		return err
	}
	defer h.Close()
	l, err := byName(h, b.Name)
	if err != nil || l == nil || !isOwnBridge(l) {
		return err
	}
	links, err := whole(h.LinkList)
	if err != nil {
		return fmt.Errorf("list ports of %s: %w", b.Name, err)
	}
	for _, port := range links {
		if port.Attrs().MasterIndex == l.Attrs().Index {
			return nil
		}
	}
	return remove(h, l)
}

// bridgeMAC is what Berth's bridge is known by. It is given in the call that makes the bridge, so that there is no
// moment at which the bridge is there and not known as Berth's; and it keeps the bridge from taking the MAC of a port.
func bridgeMAC(name string) net.HardwareAddr {
	sum := sha256.Sum256([]byte("berth bridge 1\n" + name + "\n"))
	mac := net.HardwareAddr(sum[:6])
	mac[0] = mac[0]&^1 | 2
	return mac
}

func isOwnBridge(l netlink.Link) bool {
	return l.Type() == "bridge" && l.Attrs().HardwareAddr.String() == bridgeMAC(l.Attrs().Name).String()
}

// ensureBridge returns the index of Berth's bridge and makes it if need be. The caller holds the host-wide lock.
func ensureBridge(h *netlink.Handle, name string) (int, error) {
	l, err := byName(h, name)
	if err != nil {
		return 0, fmt.Errorf("find bridge %s: %w", name, err)
	}
	if l == nil {
		br := &netlink.Bridge{LinkAttrs: attrs(name, 0, bridgeMAC(name))}
		if err := h.LinkAdd(br); err != nil {
			return 0, fmt.Errorf("make bridge %s: %w", name, err)
		}
		step.Fault("bridge made")
		l = br
	}
	if !isOwnBridge(l) {
		return 0, refuse.Busyf("link %s is there and not Berth's: rename or remove it, or name a bridge of yours as parent", name)
	}
	if isUp(l) {
		return l.Attrs().Index, nil
	}
	if err := noLinkLocal(h, l); err != nil {
		return 0, err
	}
	if err := h.LinkSetAlias(l, "berth: nodes without a parent"); err != nil {
		return 0, fmt.Errorf("mark bridge %s: %w", name, err)
	}
	if err := h.LinkSetUp(l); err != nil {
		return 0, fmt.Errorf("set bridge %s up: %w", name, err)
	}
	return l.Attrs().Index, nil
}
