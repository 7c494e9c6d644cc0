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

// bridgeMAC returns the MAC by which Berth recognizes its own bridge. The call that makes the bridge also sets the MAC,
// so the bridge is recognizable from the start. A fixed MAC also keeps the bridge from taking the MAC of a port.
func bridgeMAC(name string) mac.Address { return mac.Derive("berth bridge 1\n" + name + "\n") }

func isOwnBridge(l netlink.Link) bool {
	return l.Type() == "bridge" && netif.MAC(l) == bridgeMAC(l.Attrs().Name)
}

// ensureBridge returns the index of one of Berth's bridges and makes the bridge if needed. The caller holds the
// host-wide lock.
func ensureBridge(h *netlink.Handle, name string) (int, error) {
	l, err := netif.ByName(h, name)
	if err != nil {
		return 0, fmt.Errorf("find bridge %s: %w", name, err)
	}
	if l == nil {
		br := &netlink.Bridge{LinkAttrs: netif.Attrs(name, 0, bridgeMAC(name))}
		if err := h.LinkAdd(br); err != nil {
			return 0, fmt.Errorf("make bridge %s: %w", name, err)
		}
		fault.Point("bridge made")
		l = br
		if err := plugCables(h, name, br.Attrs().Index); err != nil {
			return 0, err
		}
	}
	if !isOwnBridge(l) {
		return 0, refuse.Busyf("link %s is there and not Berth's: remove it, or name a bridge of yours as parent", name)
	}
	if netif.IsUp(l) {
		return l.Attrs().Index, nil
	}
	if err := netif.NoLinkLocal(h, l); err != nil {
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

// Bridge is the host-only bridge that the nodes without a parent share. The first such node makes it and the last one
// removes it. It is in a network namespace of its own: nodes reach each other over it, but not the host.
type Bridge struct {
	Lock string    `json:"host_lock"` // file of the host-wide lock
	Name string    `json:"name"`
	Hub  netif.Hub `json:"hub"`
}

// Kind implements step.Step.
func (b *Bridge) Kind() string { return "link.bridge" }

func (b *Bridge) String() string {
	return fmt.Sprintf("%s, host-only, made with the first node and gone with the last", b.Name)
}

// Do makes the bridge unless it exists.
func (b *Bridge) Do(ctx context.Context) error {
	lock, err := netif.Lock(ctx, b.Lock)
	if err != nil {
		return err
	}
	defer lock.Close()
	h, err := b.Hub.Ensure()
	if err != nil {
		return err
	}
	defer h.Close()
	_, err = ensureBridge(h, b.Name)
	return err
}

// Verify checks nothing: the end of another node may remove a bridge without ports, and Veth.Do makes it again under
// the lock under which it adds its port.
func (b *Bridge) Verify(context.Context) error { return nil }

// Undo removes the bridge if it has no port left.
func (b *Bridge) Undo(ctx context.Context) error {
	lock, err := netif.Lock(ctx, b.Lock)
	if err != nil {
		return err
	}
	defer lock.Close()
	return b.Hub.Remove()
}
