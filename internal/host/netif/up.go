package netif

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"berth/internal/sys/fault"
	"berth/internal/sys/mac"
	"berth/internal/sys/refuse"
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
	most, look := virtualCarrier, time.Millisecond
	if adapter {
		most, look = adapterCarrier, 5*time.Millisecond
	}
	return i.await(ctx, most, look, func() (bool, error) {
		l, err := i.Link(r)
		return err == nil && l.Attrs().RawFlags&unix.IFF_LOWER_UP != 0, err
	})
}

// Forwards waits until the bridge whose port is the host's end of the interface, a veth, takes frames from that port. The
// carrier of a veth is there at once, but a bridge (net/bridge/br_if.c, br_port_carrier_check) hears of it a moment later, from
// a worker of the kernel (net/core/link_watch.c) that sets the port's operational state before. A bridge with STP takes frames only
// after twice its forward delay; Forwards does not wait for that. It returns false if the state did not come.
func (i *Inside) Forwards(ctx context.Context, hub Hub, l netlink.Link) (bool, error) {
	h, peer, err := PeerOf(hub, l)
	if err != nil {
		return false, err
	}
	defer h.Close()
	return i.await(ctx, virtualCarrier, time.Millisecond, func() (bool, error) {
		now, err := ByIndex(h, peer.Attrs().Index)
		if err == nil && now == nil {
			err = errNoPeer
		}
		if err != nil {
			return false, fmt.Errorf("read the host's end of %s: %w", i.If, err)
		}
		return now.Attrs().OperState == netlink.OperUp, nil
	})
}

// await asks again after each look until is returns true, for most at most.
func (i *Inside) await(ctx context.Context, most, look time.Duration, is func() (bool, error)) (bool, error) {
	for end := time.Now().Add(most); ; {
		if ok, err := is(); ok || err != nil {
			return ok, err
		}
		if time.Now().After(end) {
			return false, nil
		}
		select {
		case <-ctx.Done():
			return false, fmt.Errorf("wait for the carrier of %s: %w", i.If, ctx.Err())
		case <-time.After(look):
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
