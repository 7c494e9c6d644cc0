package link

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"berth/internal/antispoof"
	"berth/internal/dhcp"
	"berth/internal/refuse"
	"berth/internal/vnode"
)

// AntiSpoof limits what an interface of a node sends to its own MAC and addresses, by a program on the host's end of a
// veth or on the node's interface. The node has no right to change the program.
type AntiSpoof struct {
	Inside
	Way     Way      `json:"way"` // Peer: on what the host's end receives; Egress: on what the node's interface sends
	Hub     Hub      `json:"hub,omitempty"`
	MAC     string   `json:"mac,omitempty"` // empty: the MAC that a lent adapter has
	Address []string `json:"addresses,omitempty"`
	Lease   string   `json:"lease,omitempty"` // lease file of an interface with DHCP
	Lent    bool     `json:"lent,omitempty"`  // the link goes back to the host
	Tag     string   `json:"tag,omitempty"`   // tag of the program, after Do
}

// antiSpoof returns the step for one network; nil if its spec switches the check off.
func (in *Input) antiSpoof(n vnode.Network) *AntiSpoof {
	if n.Mode == vnode.None || n.Spoof {
		return nil
	}
	s := &AntiSpoof{
		Inside: Inside{NS: in.NS, If: n.Name}, Way: Egress, MAC: in.MACs[n.Name], Address: n.Address,
		Lent: n.Mode == vnode.Phys || n.Mode == vnode.SRIOV,
	}
	if n.Mode == vnode.Bridge {
		s.Way = Peer
		if n.Parent == "" {
			s.Hub = in.Hub
		}
	}
	if n.DHCP {
		s.Lease = LeaseFile(in.Run, n.Name)
	}
	return s
}

// Kind implements step.Step.
func (a *AntiSpoof) Kind() string { return "link.antispoof" }

func (a *AntiSpoof) String() string {
	what := append([]string{"its MAC"}, a.Address...)
	if a.Lease != "" {
		what = append(what, "its leased address")
	}
	return fmt.Sprintf("%s sends from %s only, by cls_bpf%s", a.If, strings.Join(what, ", "), a.Way.where())
}

// Do attaches the program.
func (a *AntiSpoof) Do(context.Context) error {
	return a.attach(ReadLease(a.Lease))
}

func (a *AntiSpoof) attach(l dhcp.Lease) error {
	return a.at(func(h *netlink.Handle, on, inner netlink.Link) error {
		r, err := a.rules(inner, l)
		if err != nil {
			return err
		}
		a.Tag, err = antispoof.Attach(h, on, a.side(), r)
		return a.refused(err)
	})
}

// refused adds a remedy if the kernel lacks support. Support is not probed before the plan: a probe costs more than the
// step.
func (a *AntiSpoof) refused(err error) error {
	if !slices.ContainsFunc([]error{unix.ENOENT, unix.EOPNOTSUPP, unix.ENOSYS, unix.EPERM}, func(e error) bool { return errors.Is(err, e) }) {
		return err
	}
	return refuse.Cannotf("use a kernel with CONFIG_BPF_SYSCALL, CONFIG_NET_CLS_BPF and CONFIG_NET_SCH_INGRESS (Debian, Ubuntu: linux-image), "+
		"or write spoof: true, which lets the node send from others' addresses",
		"network %s: this kernel cannot hold what it sends to its own addresses: %w", a.If, err)
}

// rules returns what the interface may send while it has the lease l.
func (a *AntiSpoof) rules(inner netlink.Link, l dhcp.Lease) (antispoof.Rules, error) {
	r := antispoof.Rules{MAC: inner.Attrs().HardwareAddr, DHCP: a.Lease != "", Any: len(a.Address) == 0 && a.Lease == ""}
	if a.MAC != "" {
		mac, err := net.ParseMAC(a.MAC)
		if err != nil {
			return r, fmt.Errorf("hold %s to its MAC: %w", a.If, err)
		}
		r.MAC = mac
	}
	if len(r.MAC) != 6 {
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

func (a *AntiSpoof) side() antispoof.Side {
	if a.Way == Peer {
		return antispoof.Received
	}
	return antispoof.Sent
}

// Verify reads back which program is attached.
func (a *AntiSpoof) Verify(context.Context) error {
	now, want, err := a.tags()
	if err == nil && now != want {
		err = fmt.Errorf("%s: the spoof check is not there: the kernel has program %q, not %s", a.If, now, want)
	}
	return err
}

// tags returns the tags of the attached program and of the expected one.
func (a *AntiSpoof) tags() (now, want string, err error) {
	err = a.at(func(h *netlink.Handle, on, inner netlink.Link) error {
		if now, err = antispoof.Read(h, on, a.side()); err != nil {
			return err
		}
		if want = a.Tag; a.Lease == "" && want != "" {
			return nil
		}
		r, err := a.rules(inner, ReadLease(a.Lease))
		if err == nil {
			want, err = r.Tag()
		}
		return err
	})
	return now, want, err
}

// Undo removes the program from a link that goes back to the host. On other links the program goes with the link.
func (a *AntiSpoof) Undo(context.Context) error {
	if !a.Lent {
		return nil
	}
	r, err := a.enter()
	if gone(err) {
		return nil
	}
	if err != nil {
		return err
	}
	defer r.Close()
	l, err := byName(r.Handle, a.If)
	if err != nil || l == nil {
		return err
	}
	return antispoof.Detach(r.Handle, l)
}

// at calls f with the link that carries the program, and the node's link.
func (a *AntiSpoof) at(f func(h *netlink.Handle, on, inner netlink.Link) error) error {
	in, err := a.enter()
	if err != nil {
		return err
	}
	defer in.Close()
	l, err := a.link(in)
	if err != nil {
		return err
	}
	if a.Way != Peer {
		return f(in.Handle, l, l)
	}
	s, err := peerShaper(a.Hub, l)
	if err != nil {
		return err
	}
	defer s.close()
	return f(s.h, s.l, l)
}

// SpoofCheck returns the tag of the program that the kernel runs as an interface's spoof check, and whether that is the
// expected program.
func SpoofCheck(in Input, ifname string) (tag string, holds bool, err error) {
	i := slices.IndexFunc(in.Networks, func(n vnode.Network) bool { return n.Name == ifname })
	if i < 0 {
		return "", false, nil
	}
	a := in.antiSpoof(in.Networks[i])
	if a == nil {
		return "", false, nil
	}
	tag, want, err := a.tags()
	return tag, tag == want && tag != "", err
}
