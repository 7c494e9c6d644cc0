package antispoof

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"berth/internal/host/netif"
	"berth/internal/network/dhcp"
	"berth/internal/sys/mac"
	"berth/internal/sys/refuse"
)

// Step limits what an interface of a node sends to its own MAC and addresses, by a program on the host's end of a
// veth or on the node's interface. The node has no right to change the program.
type Step struct {
	netif.Inside
	Way     netif.Way   `json:"way"` // Peer: on what the host's end receives; Egress: on what the node's interface sends
	Hub     netif.Hub   `json:"hub,omitempty"`
	MAC     mac.Address `json:"mac,omitzero"` // empty: the MAC that a lent adapter has
	Address []string    `json:"addresses,omitempty"`
	Lease   string      `json:"lease,omitempty"` // lease file of an interface with DHCP
	Lent    bool        `json:"lent,omitempty"`  // the link goes back to the host
	Tag     string      `json:"tag,omitempty"`   // tag of the program, after Do
}

// Kind implements step.Step.
func (a *Step) Kind() string { return "link.antispoof" }

func (a *Step) String() string {
	what := append([]string{"its MAC"}, a.Address...)
	if a.Lease != "" {
		what = append(what, "its leased address")
	}
	return fmt.Sprintf("%s sends from %s only, by cls_bpf%s", a.If, strings.Join(what, ", "), a.Way.Where())
}

// Do attaches the program.
func (a *Step) Do(context.Context) error {
	return a.Follow(dhcp.ReadLease(a.Lease))
}

// Follow attaches the program for the addresses of the interface and that of the lease l.
func (a *Step) Follow(l dhcp.Lease) error {
	return a.At(func(h *netlink.Handle, on, inner netlink.Link) error {
		r, err := a.rules(inner, l)
		if err != nil {
			return err
		}
		a.Tag, err = attach(h, on, a.side(), r)
		return a.refused(err)
	})
}

// refused adds a remedy if the kernel lacks support. Support is not probed before the plan: a probe costs more than the
// step.
func (a *Step) refused(err error) error {
	if !slices.ContainsFunc([]error{unix.ENOENT, unix.EOPNOTSUPP, unix.ENOSYS, unix.EPERM}, func(e error) bool { return errors.Is(err, e) }) {
		return err
	}
	return refuse.Cannotf("use a kernel with CONFIG_BPF_SYSCALL, CONFIG_NET_CLS_BPF and CONFIG_NET_SCH_INGRESS (Debian, Ubuntu: linux-image), "+
		"or write spoof: true, which lets the node send from others' addresses",
		"network %s: this kernel cannot hold what it sends to its own addresses: %w", a.If, err)
}

// rules returns what the interface may send while it has the lease l.
func (a *Step) rules(inner netlink.Link, l dhcp.Lease) (Rules, error) {
	r := Rules{MAC: netif.MAC(inner), DHCP: a.Lease != "", Any: len(a.Address) == 0 && a.Lease == ""}
	if !a.MAC.IsZero() {
		r.MAC = a.MAC
	}
	if !r.MAC.IsEthernet() {
		return r, refuse.Cannotf("write spoof: true", "network %s: %s is no adapter of Ethernet: what it sends cannot be held to its own addresses", a.If, inner.Attrs().Name)
	}
	for _, cidr := range a.Address {
		p, err := netip.ParsePrefix(cidr)
		if err != nil {
			return r, fmt.Errorf("hold %s to its addresses: %w", a.If, err)
		}
		r.IPs = append(r.IPs, p.Addr())
	}
	if r.DHCP && l.State(dhcp.Now()) != dhcp.Ended {
		r.IPs = append(r.IPs, l.Address.Addr())
	}
	return r, nil
}

func (a *Step) side() Side {
	if a.Way == netif.Peer {
		return Received
	}
	return Sent
}

// Verify reads back which program is attached.
func (a *Step) Verify(context.Context) error {
	now, want, err := a.Tags()
	if err == nil && now != want {
		err = fmt.Errorf("%s: the spoof check is not there: the kernel has program %q, not %s", a.If, now, want)
	}
	return err
}

// Tags returns the tags of the attached program and of the expected one.
func (a *Step) Tags() (now, want string, err error) {
	err = a.At(func(h *netlink.Handle, on, inner netlink.Link) error {
		if now, err = readTag(h, on, a.side()); err != nil {
			return err
		}
		want, err = a.expected(now, func() (Rules, error) { return a.rules(inner, dhcp.ReadLease(a.Lease)) })
		return err
	})
	return now, want, err
}

// expected returns the tag of the program that is to be attached where now is: of an interface with DHCP whichever there is, because its
// program follows the lease, neither at the moment of its end nor at that at which its file is written.
func (a *Step) expected(now string, rules func() (Rules, error)) (string, error) {
	if a.Lease == "" && a.Tag != "" {
		return a.Tag, nil
	}
	if a.Lease != "" && now != "" {
		return now, nil
	}
	r, err := rules()
	if err != nil {
		return "", err
	}
	return r.Tag()
}

// Undo removes the program and its qdisc from a link that goes back to the host. On other links the program goes with the link.
func (a *Step) Undo(context.Context) error {
	if !a.Lent {
		return nil
	}
	return a.IfThere(func(r *netif.Socket) error {
		l, err := netif.ByName(r.Handle, a.If)
		if err != nil || l == nil {
			return err
		}
		return netif.DeleteQdisc(r.Handle, netif.Clsact(l))
	})
}

// At calls f with the link that carries the program, and the node's link.
func (a *Step) At(f func(h *netlink.Handle, on, inner netlink.Link) error) error {
	return a.Way.On(&a.Inside, a.Hub, f)
}
