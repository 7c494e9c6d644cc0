package link

import (
	"crypto/sha256"
	"fmt"
	"net"

	"github.com/vishvananda/netlink"

	"berth/internal/refuse"
	"berth/internal/step"
)

// bridgeMAC returns the MAC by which Berth recognizes its own bridge. The call that makes the bridge also sets the MAC,
// so the bridge is recognizable from the start. A fixed MAC also keeps the bridge from taking the MAC of a port.
func bridgeMAC(name string) net.HardwareAddr {
	sum := sha256.Sum256([]byte("berth bridge 1\n" + name + "\n"))
	mac := net.HardwareAddr(sum[:6])
	mac[0] = mac[0]&^1 | 2
	return mac
}

func isOwnBridge(l netlink.Link) bool {
	return l.Type() == "bridge" && l.Attrs().HardwareAddr.String() == bridgeMAC(l.Attrs().Name).String()
}

// ensureBridge returns the index of one of Berth's bridges and makes the bridge if needed. The caller holds the
// host-wide lock.
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
		if err := plugCables(h, name, br.Attrs().Index); err != nil {
			return 0, err
		}
	}
	if !isOwnBridge(l) {
		return 0, refuse.Busyf("link %s is there and not Berth's: remove it, or name a bridge of yours as parent", name)
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
