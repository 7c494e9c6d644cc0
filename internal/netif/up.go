package netif

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"berth/internal/fault"
	"berth/internal/mac"
	"berth/internal/refuse"
)

// Set gives l a MAC and an MTU; no MAC or 0 means no change. Some drivers require the link to be down for a new MAC.
func Set(h *netlink.Handle, l netlink.Link, want mac.Address, mtu int) error {
	a := l.Attrs()
	if !want.IsZero() && want != MAC(l) {
		if err := h.LinkSetHardwareAddr(l, want.HardwareAddr()); err != nil {
			return fmt.Errorf("set MAC of %s to %s: %w", a.Name, want, err)
		}
		fault.Point("MAC set")
	}
	if mtu != 0 && mtu != a.MTU {
		if err := h.LinkSetMTU(l, mtu); err != nil {
			return fmt.Errorf("set MTU of %s to %d: %w", a.Name, mtu, err)
		}
	}
	return nil
}

// How long to wait for a carrier: an adapter needs two to four seconds to negotiate with its switch.
const (
	adapterCarrier = 5 * time.Second
	virtualCarrier = 200 * time.Millisecond
)

// Carrier waits until the interface can send, longer for a real adapter. It returns false if there is no carrier.
func (i *Inside) Carrier(ctx context.Context, r *Socket, adapter bool) (bool, error) {
	wait := virtualCarrier
	if adapter {
		wait = adapterCarrier
	}
	for end := time.Now().Add(wait); ; {
		l, err := i.Link(r)
		if err != nil {
			return false, err
		}
		if l.Attrs().RawFlags&unix.IFF_LOWER_UP != 0 {
			return true, nil
		}
		if time.Now().After(end) {
			return false, nil
		}
		select {
		case <-ctx.Done():
			return false, fmt.Errorf("wait for the carrier of %s: %w", i.If, ctx.Err())
		case <-time.After(5 * time.Millisecond):
		}
	}
}

// formerLife is how long a macvlan may survive its node: the kernel destroys a dead network namespace some time later.
const formerLife = time.Second

// BringUp sets a node's interface up. It waits for an earlier macvlan with the same MAC to go.
func BringUp(h *netlink.Handle, l netlink.Link, own mac.Address) error {
	err := h.LinkSetUp(l)
	for end := time.Now().Add(formerLife); errors.Is(err, unix.EADDRINUSE) && time.Now().Before(end); {
		time.Sleep(2 * time.Millisecond)
		err = h.LinkSetUp(l)
	}
	if errors.Is(err, unix.EADDRINUSE) { // from macvlan_open
		return refuse.Busyf("MAC %s of %s is in use on its parent: %w", own, l.Attrs().Name, err)
	}
	if err != nil {
		return fmt.Errorf("set %s up: %w", l.Attrs().Name, err)
	}
	return nil
}
