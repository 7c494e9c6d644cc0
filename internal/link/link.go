// Package link gives a node its network interfaces: bridge (veth), macvlan, sriov and phys, with stable MACs. It sets
// them up from outside the node's network namespace, and brings lent adapters and virtual functions home.
//
// Claims and Live are the pure constructors of its steps. Claims last until the node is removed; what the steps of Live
// make ends with the node. A node has no NET_ADMIN: everything inside is set through a netlink socket that Berth opens
// in the node's namespace.
package link

import (
	"errors"
	"fmt"
	"net"
	"os"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"berth/internal/step"
)

// Kinds makes an empty step of each kind of this package.
func Kinds() step.Kinds {
	return step.Kinds{
		"link.claim-mac": func() step.Step { return &ClaimMAC{} },
		"link.bridge":    func() step.Step { return &Bridge{} },
		"link.veth":      func() step.Step { return &Veth{} },
		"link.macvlan":   func() step.Step { return &Macvlan{} },
		"link.pin":       func() step.Step { return &Pin{} },
		"link.phys":      func() step.Step { return &Phys{} },
		"link.configure": func() step.Step { return &Configure{} },
		"link.rate":      func() step.Step { return &Rate{} },

		"link.probe": func() step.Step { return &Probe{} },
		"link.dhcp":  func() step.Step { return &DHCP{} },

		"link.claim-address": func() step.Step { return &ClaimAddress{} },

		"link.rate-change": func() step.Step { return &RateChange{} },

		"link.priority": func() step.Step { return &Priority{} },

		"link.antispoof": func() step.Step { return &AntiSpoof{} },

		"sriov.claim":     func() step.Step { return &VFClaim{} },
		"sriov.configure": func() step.Step { return &VFConfigure{} },
		"sriov.move":      func() step.Step { return &VFMove{} },
	}
}

// host opens a netlink socket in the calling thread's namespace, which is the host's.
func host() (*netlink.Handle, error) {
	h, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("open netlink socket: %w", err)
	}
	return h, nil
}

// at opens a netlink socket in the namespace ns.
func at(ns *os.File) (*netlink.Handle, error) {
	h, err := netlink.NewHandleAt(netns.NsHandle(ns.Fd()), unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("open netlink socket in %s: %w", ns.Name(), err)
	}
	return h, nil
}

// whole repeats a netlink dump until no table change interrupted it: an interrupted dump may lack entries.
func whole[T any](list func() ([]T, error)) ([]T, error) {
	var all []T
	var err error
	for range 50 {
		if all, err = list(); !errors.Is(err, netlink.ErrDumpInterrupted) {
			return all, err
		}
	}
	return nil, err
}

// byName finds a link; nil if there is none of that name.
func byName(h *netlink.Handle, name string) (netlink.Link, error) {
	return found(h.LinkByName(name))
}

// byIndex finds a link; nil if there is none of that index.
func byIndex(h *netlink.Handle, index int) (netlink.Link, error) {
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

// remove deletes a link. A link that no longer exists is no error.
func remove(h *netlink.Handle, l netlink.Link) error {
	if err := h.LinkDel(l); err != nil && !errors.Is(err, unix.ENODEV) {
		return fmt.Errorf("delete link %s: %w", l.Attrs().Name, err)
	}
	return nil
}

// noLinkLocal keeps the kernel from giving l an IPv6 link-local address when it comes up. It does nothing on a kernel
// without IPv6.
func noLinkLocal(h *netlink.Handle, l netlink.Link) error {
	const none = 1 // IN6_ADDR_GEN_MODE_NONE
	err := h.LinkSetIP6AddrGenMode(l, none)
	if err == nil || errors.Is(err, unix.EAFNOSUPPORT) || errors.Is(err, unix.EOPNOTSUPP) {
		return nil
	}
	return fmt.Errorf("take IPv6 off link %s: %w", l.Attrs().Name, err)
}

// move puts the link with this index from namespace from (nil: the calling thread's) into namespace to and renames it,
// in one message. So a name that is used in only one of the two namespaces is no obstacle (__dev_change_net_namespace
// takes the new name if the old one is taken). The link is down afterwards.
func move(from *os.File, index int, to *os.File, name string) error {
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

// attrs returns the attributes of a link that is to be made.
func attrs(name string, mtu int, mac net.HardwareAddr) netlink.LinkAttrs {
	a := netlink.NewLinkAttrs()
	a.Name, a.MTU, a.HardwareAddr = name, mtu, mac
	return a
}

func isUp(l netlink.Link) bool { return l.Attrs().Flags&net.FlagUp != 0 }

func isLoopback(l netlink.Link) bool { return l.Attrs().Flags&net.FlagLoopback != 0 }
