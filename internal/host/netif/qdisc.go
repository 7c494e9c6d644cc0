package netif

import (
	"errors"
	"fmt"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Clsact returns the qdisc that carries filters for what a link receives and sends.
func Clsact(l netlink.Link) *netlink.Clsact {
	return &netlink.Clsact{QdiscAttrs: netlink.QdiscAttrs{
		LinkIndex: l.Attrs().Index, Parent: netlink.HANDLE_CLSACT, Handle: netlink.MakeHandle(0xffff, 0),
	}}
}

// AddQdisc adds a qdisc that carries filters to l, unless l has one. A link has either ingress or clsact; clsact also
// carries egress filters.
func AddQdisc(h *netlink.Handle, l netlink.Link, q netlink.Qdisc) error {
	if err := h.QdiscAdd(q); err != nil && !errors.Is(err, unix.EEXIST) {
		return fmt.Errorf("add qdisc %s to %s: %w", q.Type(), l.Attrs().Name, err)
	}
	return nil
}

// DeleteQdisc removes a qdisc. That there is none is no error.
func DeleteQdisc(h *netlink.Handle, q netlink.Qdisc) error {
	err := h.QdiscDel(q)
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENODEV) { // EINVAL: no such qdisc
		return nil
	}
	if err != nil {
		return fmt.Errorf("remove qdisc %s: %w", q.Type(), err)
	}
	return nil
}
