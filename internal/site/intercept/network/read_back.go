package network

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"berth/internal/host/netif"
)

// classes lists Berth's classes on a link by number.
func classes(h *netlink.Handle, l netlink.Link) (map[uint16]*netlink.HtbClass, error) {
	all, err := netif.Dump(func() ([]netlink.Class, error) { return h.ClassList(l, 0) })
	if err != nil {
		return nil, fmt.Errorf("list classes of %s: %w", l.Attrs().Name, err)
	}
	found := map[uint16]*netlink.HtbClass{}
	for _, c := range all {
		if htb, ok := c.(*netlink.HtbClass); ok && htb.Handle>>16 == major {
			found[uint16(htb.Handle)] = htb
		}
	}
	return found, nil
}

// Lacks says which part of what enforces the limits on the interface is gone; "" if nothing is. The interface may have been made
// anew, or another program removed a qdisc.
func (n *Link) Lacks() (string, error) {
	l, err := netif.ByName(n.h, n.l.Attrs().Name)
	switch {
	case err != nil:
		return "", err
	case l == nil:
		return "the interface is gone", nil
	case l.Attrs().Index != n.l.Attrs().Index:
		return "the interface was made anew", nil
	case l.Attrs().MTU != n.l.Attrs().MTU:
		return "the interface has another MTU", nil
	case !n.follows:
		return "", nil
	}
	return lacks(n.h, l)
}

// lacks is Lacks of an interface with limits.
func lacks(h *netlink.Handle, l netlink.Link) (string, error) {
	ifb, err := findIFB(h, l.Attrs().Index)
	if err != nil {
		return "", err
	}
	if ifb == nil || ifb.Attrs().Flags&net.FlagUp == 0 {
		return "its ifb is gone, or down", nil
	}
	root := netlink.MakeHandle(major, 0)
	for _, f := range []struct {
		on     netlink.Link
		parent uint32
	}{{l, root}, {ifb, root}, {l, netlink.HANDLE_MIN_INGRESS}} {
		all, err := netif.Dump(func() ([]netlink.Filter, error) { return h.FilterList(f.on, f.parent) })
		if err != nil && !errors.Is(err, unix.ENOENT) && !errors.Is(err, unix.EINVAL) { // no such qdisc
			return "", fmt.Errorf("list filters of %s: %w", f.on.Attrs().Name, err)
		}
		if !slices.ContainsFunc(all, func(f netlink.Filter) bool { return f.Attrs().Priority == priority }) {
			return "a qdisc or a filter on " + f.on.Attrs().Name + " is gone", nil
		}
	}
	return "", nil
}

// Watch calls changed after each change of an interface that has one of the names, until ctx ends.
func Watch(ctx context.Context, names []string, changed func()) error {
	subscribe := func() (chan netlink.LinkUpdate, error) {
		updates := make(chan netlink.LinkUpdate, 16)
		if err := netlink.LinkSubscribe(updates, ctx.Done()); err != nil {
			return nil, fmt.Errorf("watch interfaces: %w", err)
		}
		return updates, nil
	}
	updates, err := subscribe()
	if err != nil {
		return err
	}
	go func() {
		for err == nil {
			for u := range updates { // closed when ctx has ended, and when there were too many to read
				if slices.Contains(names, u.Attrs().Name) {
					changed()
				}
			}
			if ctx.Err() != nil {
				return
			}
			changed()
			updates, err = subscribe()
		}
	}()
	return nil
}

// Held has the limits and counters of a node in the kernel.
type Held struct {
	Rates        // as it limits them
	Passed Rates // bytes of data so far; of a side without a limit 0
}

// Read reads the limits and counters of nodes on an interface, by class, and which part of what enforces them is gone; "" if
// nothing is.
func Read(name string) (all map[uint16]Held, wrong string, err error) {
	h, err := netif.Host()
	if err != nil {
		return nil, "", err
	}
	defer h.Close()
	l, err := find(h, name)
	if err != nil {
		return nil, "", err
	}
	if wrong, err = lacks(h, l); err != nil {
		return nil, "", err
	}
	all, err = read(h, l)
	return all, wrong, err
}

func read(h *netlink.Handle, l netlink.Link) (map[uint16]Held, error) {
	ifb, err := findIFB(h, l.Attrs().Index)
	if err != nil {
		return nil, err
	}
	found := map[uint16]Held{}
	for i, on := range []netlink.Link{l, ifb} {
		if on == nil {
			break
		}
		all, err := classes(h, on)
		if err != nil {
			return nil, err
		}
		for number, c := range all {
			one, passed := found[number], uint64(0)
			if c.Statistics != nil && c.Statistics.Basic != nil {
				passed = data(c.Statistics.Basic.Bytes, l.Attrs().MTU)
			}
			if i == 0 {
				one.Read, one.Passed.Read = data(c.Rate, l.Attrs().MTU), passed
			} else {
				one.Write, one.Passed.Write = data(c.Rate, l.Attrs().MTU), passed
			}
			found[number] = one
		}
	}
	return found, nil
}
