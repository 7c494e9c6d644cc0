package netif

import (
	"fmt"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"berth/internal/sys/mac"
)

// MACOf returns the MAC of a link of the host; "" if there is no such link.
func MACOf(name string) mac.Address {
	l, err := netlink.LinkByName(name)
	if err != nil {
		return mac.Address{}
	}
	return MAC(l)
}

// HostMACs maps each MAC that is in use on this host to its owner.
func HostMACs() (map[mac.Address]string, error) {
	links, err := HostLinks()
	return MACsOf(links, ""), err
}

// HostLinks returns all links of the host.
func HostLinks() ([]netlink.Link, error) {
	h, err := Host()
	if err != nil {
		return nil, err
	}
	defer h.Close()
	return List(h)
}

// MACsOf maps the MACs of the host's links, current and permanent, to the link's name, and the MACs that adapters
// keep for virtual functions, whose links may be in nodes, to the function. It leaves out the MACs of the link except.
func MACsOf(links []netlink.Link, except string) map[mac.Address]string {
	macs := map[mac.Address]string{}
	own := mac.Address{}
	for _, l := range links {
		a := l.Attrs()
		for _, vf := range a.Vfs {
			if kept := mac.Of(vf.Mac); kept.IsEthernet() && kept != mac.Zeros {
				macs[kept] = fmt.Sprintf("virtual function %d of %s", vf.ID, a.Name)
			}
		}
		if a.Name == except {
			own = MAC(l)
			continue
		}
		for _, one := range []mac.Address{MAC(l), mac.Of(a.PermHWAddr)} {
			if !one.IsZero() {
				macs[one] = "link " + a.Name
			}
		}
	}
	delete(macs, own) // a virtual function that is lent may keep its MAC
	return macs
}

// State is an interface of a node as the kernel reports it.
type State struct {
	Name    string      `json:"name"`
	Type    string      `json:"type"` // veth, macvlan …; device: an adapter
	MAC     mac.Address `json:"mac"`
	MTU     int         `json:"mtu"` // bytes
	Up      bool        `json:"up"`
	Carrier bool        `json:"carrier"`           // up, and so is what it is connected to
	Address []string    `json:"address,omitempty"` // with prefix length, without IPv6 link-local ones
}

// Read reads the interface ifname of the namespace ns. The error wraps fs.ErrNotExist if the namespace does not exist.
func Read(ns NS, ifname string) (State, error) {
	in := Inside{NS: ns, If: ifname}
	return in.State()
}

// State reads the interface.
func (i *Inside) State() (s State, err error) {
	err = i.On(func(r *Socket, l netlink.Link) error {
		s, err = ReadLink(r.Handle, l)
		return err
	})
	return s, err
}

// ReadLink reads an interface that is at hand.
func ReadLink(h *netlink.Handle, l netlink.Link) (State, error) {
	a := l.Attrs()
	s := State{
		Name: a.Name, Type: l.Type(), MAC: MAC(l), MTU: a.MTU, Up: IsUp(l),
		Carrier: a.RawFlags&unix.IFF_LOWER_UP != 0,
	}
	addrs, err := Addresses(h, l)
	if err != nil {
		return s, err
	}
	for _, ad := range addrs {
		if ad.IP.To4() == nil && ad.IP.IsLinkLocalUnicast() {
			continue
		}
		if ad.Flags&(unix.IFA_F_TENTATIVE|unix.IFA_F_DADFAILED) == 0 {
			s.Address = append(s.Address, ad.IPNet.String())
		}
	}
	slices.Sort(s.Address)
	return s, nil
}
