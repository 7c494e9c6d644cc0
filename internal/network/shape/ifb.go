package shape

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"berth/internal/host/netif"
	"berth/internal/sys/fault"
	"berth/internal/sys/mac"
)

// ifbPrefix begins the name of an ifb that Berth makes in a node.
const ifbPrefix = "rx."

// ifbName returns the name of the ifb of an interface in the node. It depends on the interface's name only, so a
// virtual function that comes back after a reload of its driver finds its ifb again. No interface in a spec has a dot
// in its name.
func ifbName(l netlink.Link) string {
	name := l.Attrs().Name
	if len(name) > 12 {
		sum := sha256.Sum256([]byte(name))
		name = hex.EncodeToString(sum[:6])
	}
	return ifbPrefix + name
}

// findIFB returns the ifb that limits what l receives; nil if there is none.
func findIFB(h *netlink.Handle, l netlink.Link) (netlink.Link, error) {
	ifb, err := netif.ByName(h, ifbName(l))
	if err != nil {
		return nil, fmt.Errorf("find ifb of %s: %w", l.Attrs().Name, err)
	}
	if ifb == nil || ifb.Type() != "ifb" {
		return nil, nil
	}
	return ifb, nil
}

func makeIFB(h *netlink.Handle, l netlink.Link) (netlink.Link, error) {
	ifb := &netlink.Ifb{LinkAttrs: netif.Attrs(ifbName(l), 0, mac.Address{})}
	if err := h.LinkAdd(ifb); err != nil {
		return nil, fmt.Errorf("make ifb for %s: %w", l.Attrs().Name, err)
	}
	fault.Point("ifb made")
	if err := netif.NoLinkLocal(h, ifb); err != nil {
		return nil, err
	}
	if err := h.LinkSetUp(ifb); err != nil {
		return nil, fmt.Errorf("set ifb of %s up: %w", l.Attrs().Name, err)
	}
	return ifb, nil
}

func ingressOf(l netlink.Link) netlink.QdiscAttrs {
	return netlink.QdiscAttrs{LinkIndex: l.Attrs().Index, Parent: netlink.HANDLE_INGRESS, Handle: netlink.MakeHandle(0xffff, 0)}
}

// unhook removes the redirection of what l receives, and its qdisc unless that is a clsact, which has other filters.
func unhook(h *netlink.Handle, l netlink.Link) error {
	all, err := netif.Dump(func() ([]netlink.Qdisc, error) { return h.QdiscList(l) })
	if err != nil {
		return fmt.Errorf("list qdiscs of %s: %w", l.Attrs().Name, err)
	}
	if !slices.ContainsFunc(all, func(q netlink.Qdisc) bool { return q.Type() == "clsact" }) {
		return netif.DeleteQdisc(h, &netlink.Ingress{QdiscAttrs: ingressOf(l)})
	}
	err = h.FilterDel(&netlink.U32{FilterAttrs: allOf(l, netlink.HANDLE_MIN_INGRESS)})
	if err != nil && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("remove the filter of what %s receives: %w", l.Attrs().Name, err)
	}
	return nil
}

// allOf returns the attributes of Berth's filter that matches all packets on one side of l.
func allOf(l netlink.Link, side uint32) netlink.FilterAttrs {
	return netlink.FilterAttrs{LinkIndex: l.Attrs().Index, Parent: side, Priority: 1, Protocol: unix.ETH_P_ALL}
}

// Redirect lets everything that l receives be sent by another link in the same namespace; an ifb returns it to l.
func Redirect(h *netlink.Handle, l, by netlink.Link) error {
	if ok, err := Redirected(h, l, by); err != nil || ok {
		return err
	}
	if err := unhook(h, l); err != nil {
		return err
	}
	if err := netif.AddQdisc(h, l, &netlink.Ingress{QdiscAttrs: ingressOf(l)}); err != nil {
		return err
	}
	fault.Point("ingress added")
	to := netlink.NewMirredAction(by.Attrs().Index)
	f := &netlink.U32{FilterAttrs: allOf(l, netlink.HANDLE_MIN_INGRESS), Actions: []netlink.Action{to}} // no keys: matches all
	if err := h.FilterAdd(f); err != nil {
		return fmt.Errorf("redirect what %s receives to %s: %w", l.Attrs().Name, by.Attrs().Name, err)
	}
	return nil
}

// Redirected reports whether what l receives is sent by another link.
func Redirected(h *netlink.Handle, l, by netlink.Link) (bool, error) {
	all, err := netif.Dump(func() ([]netlink.Filter, error) { return h.FilterList(l, netlink.HANDLE_MIN_INGRESS) })
	if err != nil {
		return false, fmt.Errorf("list filters of %s: %w", l.Attrs().Name, err)
	}
	for _, f := range all {
		u, ok := f.(*netlink.U32)
		if !ok {
			continue
		}
		for _, a := range u.Actions {
			if m, ok := a.(*netlink.MirredAction); ok && m.Ifindex == by.Attrs().Index {
				return true, nil
			}
		}
	}
	return false, nil
}
