// Package netif reaches the network interfaces of the host and of nodes: it opens network namespaces, finds links in them,
// moves links between them, and brings a lent link home as it was.
//
// A node has no NET_ADMIN. Everything inside is set through a netlink socket that Berth opens in the node's namespace.
package netif

import (
	"errors"
	"fmt"
	"net"
	"os"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"berth/internal/sys/mac"
)

// Host opens a netlink socket in the calling thread's namespace, which is the host's.
func Host() (*netlink.Handle, error) {
	h, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("open netlink socket: %w", err)
	}
	return h, nil
}

// At opens a netlink socket in the namespace ns.
func At(ns *os.File) (*netlink.Handle, error) {
	h, err := netlink.NewHandleAt(netns.NsHandle(ns.Fd()), unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("open netlink socket in %s: %w", ns.Name(), err)
	}
	return h, nil
}

// Dump repeats a netlink dump until no table change interrupted it: an interrupted dump may lack entries.
func Dump[T any](list func() ([]T, error)) ([]T, error) {
	var all []T
	var err error
	for range 50 {
		if all, err = list(); !errors.Is(err, netlink.ErrDumpInterrupted) {
			return all, err
		}
	}
	return nil, err
}

// ByName finds a link; nil if there is none of that name.
func ByName(h *netlink.Handle, name string) (netlink.Link, error) {
	return found(h.LinkByName(name))
}

// ByIndex finds a link; nil if there is none of that index.
func ByIndex(h *netlink.Handle, index int) (netlink.Link, error) {
	if index == 0 {
		return nil, nil
	}
	return found(h.LinkByIndex(index))
}

func found(l netlink.Link, err error) (netlink.Link, error) {
	if _, ok := errors.AsType[netlink.LinkNotFoundError](err); ok {
		return nil, nil
	}
	return l, err
}

// Delete deletes a link. A link that no longer exists is no error.
func Delete(h *netlink.Handle, l netlink.Link) error {
	if err := h.LinkDel(l); err != nil && !errors.Is(err, unix.ENODEV) {
		return fmt.Errorf("delete link %s: %w", l.Attrs().Name, err)
	}
	return nil
}

// NoLinkLocal keeps the kernel from giving l an IPv6 link-local address when it comes up. It does nothing on a kernel
// without IPv6.
func NoLinkLocal(h *netlink.Handle, l netlink.Link) error {
	const none = 1 // IN6_ADDR_GEN_MODE_NONE
	err := h.LinkSetIP6AddrGenMode(l, none)
	if err == nil || errors.Is(err, unix.EAFNOSUPPORT) || errors.Is(err, unix.EOPNOTSUPP) {
		return nil
	}
	return fmt.Errorf("take IPv6 off link %s: %w", l.Attrs().Name, err)
}

// Move puts the link with this index from namespace from (nil: the calling thread's) into namespace to and renames it,
// in one message. So a name that is used in only one of the two namespaces is no obstacle (__dev_change_net_namespace
// takes the new name if the old one is taken). The link is down afterwards.
func Move(from *os.File, index int, to *os.File, name string) error {
	cur := netns.None()
	if from != nil {
		cur = netns.NsHandle(from.Fd())
	}
	sock, err := nl.GetNetlinkSocketAt(cur, netns.None(), unix.NETLINK_ROUTE)
	if err != nil {
		return fmt.Errorf("open netlink socket: %w", err)
	}
	defer sock.Close()
	req := nl.NewNetlinkRequest(unix.RTM_NEWLINK, unix.NLM_F_ACK)
	req.Sockets = map[int]*nl.SocketHandle{unix.NETLINK_ROUTE: {Socket: sock}}
	msg := nl.NewIfInfomsg(unix.AF_UNSPEC)
	msg.Index = int32(index)
	req.AddData(msg)
	req.AddData(nl.NewRtAttr(unix.IFLA_NET_NS_FD, nl.Uint32Attr(uint32(to.Fd()))))
	req.AddData(nl.NewRtAttr(unix.IFLA_IFNAME, nl.ZeroTerminated(name)))
	_, err = req.Execute(unix.NETLINK_ROUTE, 0)
	return err
}

// Attrs returns the attributes of a link that is to be made. The kernel chooses an MTU for 0 and a MAC for none.
func Attrs(name string, mtu int, own mac.Address) netlink.LinkAttrs {
	a := netlink.NewLinkAttrs()
	a.Name, a.MTU, a.HardwareAddr = name, mtu, own.HardwareAddr()
	return a
}

// MAC returns the MAC of a link.
func MAC(l netlink.Link) mac.Address { return mac.Of(l.Attrs().HardwareAddr) }

// IsUp reports whether a link is administratively up.
func IsUp(l netlink.Link) bool { return l.Attrs().Flags&net.FlagUp != 0 }

// IsLoopback reports whether a link is the loopback interface.
func IsLoopback(l netlink.Link) bool { return l.Attrs().Flags&net.FlagLoopback != 0 }

// List returns all links of h's namespace.
func List(h *netlink.Handle) ([]netlink.Link, error) {
	links, err := Dump(h.LinkList)
	if err != nil {
		return nil, fmt.Errorf("list links: %w", err)
	}
	return links, nil
}
