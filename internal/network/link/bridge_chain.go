package link

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"berth/internal/host/netif"
	"berth/internal/sys/fault"
	"berth/internal/sys/mac"
)

// mostPorts is how many ports a Linux bridge takes (BR_MAX_PORTS less one).
const mostPorts = 1023

// chained returns the name of bridge n of a hub. The bridges of a hub form a chain. Each takes mostPorts links, of
// which up to two are cables to its neighbours.
func chained(bridge string, n int) string {
	if n == 0 {
		return bridge
	}
	return fmt.Sprintf("%s.%d", bridge, n)
}

// cablePrefix begins the names of the links between two bridges of a hub.
const cablePrefix = "cable"

func isCable(l netlink.Link) bool { return strings.HasPrefix(l.Attrs().Name, cablePrefix) }

// plug makes a link a port of the first bridge of the chain with a free port. The caller holds the host-wide lock.
func plug(h *netlink.Handle, l netlink.Link, first string) error {
	for n := 0; ; n++ {
		bridge, err := ensureBridge(h, chained(first, n))
		if err != nil {
			return err
		}
		err = h.LinkSetMasterByIndex(l, bridge)
		if err == nil {
			return nil
		}
		if !errors.Is(err, unix.EXFULL) {
			return fmt.Errorf("make link %s a port of bridge %s: %w", l.Attrs().Name, chained(first, n), err)
		}
		if err := extend(h, first, n, bridge); err != nil {
			return err
		}
	}
}

// extend connects the full bridge n of the chain to the next one. The cable needs a port, so one link moves to the next
// bridge.
func extend(h *netlink.Handle, first string, n, bridge int) error {
	after, err := ensureBridge(h, chained(first, n+1))
	if err != nil {
		return err
	}
	near, far := fmt.Sprintf("%s%d-", cablePrefix, n), fmt.Sprintf("%s%d+", cablePrefix, n)
	l, err := netif.ByName(h, near)
	if err != nil {
		return fmt.Errorf("find link %s: %w", near, err)
	}
	if l == nil {
		l = &netlink.Veth{LinkAttrs: netif.Attrs(near, 0, mac.Address{}), PeerName: far, PeerTxQLen: -1}
		if err := h.LinkAdd(l); err != nil {
			return fmt.Errorf("make a cable between bridges: %w", err)
		}
		fault.Point("cable made")
	}
	if l.Attrs().MasterIndex == bridge {
		return nil
	}
	other, err := h.LinkByName(far)
	if err != nil {
		return fmt.Errorf("find link %s: %w", far, err)
	}
	moved, err := lastPort(h, bridge)
	if err != nil {
		return err
	}
	for _, do := range []func() error{
		func() error { return cableEnd(h, other, after) },
		func() error { return h.LinkSetNoMaster(moved) },
		func() error { fault.Point("port taken out"); return cableEnd(h, l, bridge) },
		func() error { return h.LinkSetMasterByIndex(moved, after) },
	} {
		if err := do(); err != nil {
			return fmt.Errorf("join bridges %s and %s: %w", chained(first, n), chained(first, n+1), err)
		}
	}
	return nil
}

func cableEnd(h *netlink.Handle, l netlink.Link, bridge int) error {
	if err := netif.NoLinkLocal(h, l); err != nil {
		return err
	}
	if err := h.LinkSetMasterByIndex(l, bridge); err != nil {
		return err
	}
	return h.LinkSetUp(l)
}

// plugCables connects a bridge that was made again to the cables of its predecessor.
func plugCables(h *netlink.Handle, name string, bridge int) error {
	base, number, _ := strings.Cut(name, ".")
	n, _ := strconv.Atoi(number) // the first bridge's name has no number
	if chained(base, n) != name {
		return nil
	}
	for _, end := range []string{fmt.Sprintf("%s%d-", cablePrefix, n), fmt.Sprintf("%s%d+", cablePrefix, n-1)} {
		l, err := netif.ByName(h, end)
		if err == nil && l != nil {
			err = cableEnd(h, l, bridge)
		}
		if err != nil {
			return fmt.Errorf("join bridge %s to the next: %w", name, err)
		}
	}
	return nil
}

// lastPort returns the newest port of a bridge that is no cable.
func lastPort(h *netlink.Handle, bridge int) (last netlink.Link, err error) {
	links, err := netif.List(h)
	if err != nil {
		return nil, err
	}
	for _, l := range links {
		if l.Attrs().MasterIndex == bridge && !isCable(l) {
			last = l
		}
	}
	if last == nil {
		return nil, errors.New("a full bridge without a port")
	}
	return last, nil
}
