package link

import (
	"context"
	"fmt"
	"strconv"

	"github.com/vishvananda/netlink"

	"berth/internal/host/netif"
	"berth/internal/network/shape"
	"berth/internal/spec/vnode"
	"berth/internal/sys/fault"
	"berth/internal/sys/mac"
)

// Adapter is an interface of a machine, as its guest has it.
type Adapter struct {
	Tap     string // the tap in the machine's network namespace that the adapter is on; its runner makes it
	Name    string
	MAC     mac.Address
	MTU     int // bytes
	Address []string
	Gateway string
	Routes  []vnode.Route
}

// Adapters returns the interfaces of a machine.
func Adapters(in Input) (all []Adapter) {
	for i, n := range in.Networks {
		if n.Mode == vnode.None {
			continue
		}
		own, mtu := in.MACs[n.Name], in.mtu(n)
		n = in.addressed(n)
		all = append(all, Adapter{Tap: tapName(i), Name: n.Name, MAC: own, MTU: mtu, Address: n.Address, Gateway: n.Gateway, Routes: n.Routes})
	}
	return all
}

// tapName is the name of the tap for a machine's interface. No interface in a spec has a dot in its name.
func tapName(i int) string { return "tap." + strconv.Itoa(i) }

// Tap joins an interface in the network namespace of a machine to the tap that the machine's adapter is on: what one of them
// receives, the other sends. So an interface of a machine is made, limited and checked as that of a container is, and its guest has
// the MAC and the addresses.
type Tap struct {
	netif.Inside
	Tap string `json:"tap"`
	MTU int    `json:"mtu"` // bytes
}

// Kind implements step.Step.
func (t *Tap) Kind() string { return "link.tap" }

func (t *Tap) String() string { return t.If + " to the machine's adapter" }

// Do joins them. It may be done again.
func (t *Tap) Do(context.Context) error {
	return t.On(func(r *netif.Socket, l netlink.Link) error {
		tap, err := t.tap(r.Handle)
		if err != nil {
			return err
		}
		for _, end := range []netlink.Link{l, tap} { // the guest alone speaks: an address of the host's kernel would be a second one with its MAC
			if err := netif.NoLinkLocal(r.Handle, end); err != nil {
				return err
			}
		}
		if err := r.LinkSetMTU(tap, t.MTU); err != nil {
			return fmt.Errorf("set the MTU of %s to %d: %w", t.Tap, t.MTU, err)
		}
		if err := r.LinkSetUp(tap); err != nil {
			return fmt.Errorf("set %s up: %w", t.Tap, err)
		}
		fault.Point("tap up")
		if err := shape.Redirect(r.Handle, l, tap); err != nil {
			return err
		}
		fault.Point("tap joined one way")
		return shape.Redirect(r.Handle, tap, l)
	})
}

// tap finds the tap.
func (t *Tap) tap(h *netlink.Handle) (netlink.Link, error) {
	tap, err := netif.ByName(h, t.Tap)
	if err != nil {
		return nil, fmt.Errorf("find %s: %w", t.Tap, err)
	}
	if tap == nil {
		return nil, fmt.Errorf("the machine has no %s: its emulator may have ended", t.Tap)
	}
	return tap, nil
}

// Verify reads back that both lead to each other.
func (t *Tap) Verify(context.Context) error {
	return t.On(func(r *netif.Socket, l netlink.Link) error {
		tap, err := t.tap(r.Handle)
		if err != nil {
			return err
		}
		for _, way := range [][2]netlink.Link{{l, tap}, {tap, l}} {
			if ok, err := shape.Redirected(r.Handle, way[0], way[1]); err != nil || !ok {
				return fmt.Errorf("%s does not lead to %s: %w", way[0].Attrs().Name, way[1].Attrs().Name, err)
			}
		}
		if !netif.IsUp(tap) {
			return fmt.Errorf("%s is down", t.Tap)
		}
		return nil
	})
}

// Undo does nothing: both go with the machine's namespace.
func (t *Tap) Undo(context.Context) error { return nil }
