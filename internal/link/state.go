package link

import (
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// State is an interface of a node as the kernel reports it.
type State struct {
	Name    string   `json:"name"`
	Type    string   `json:"type"` // veth, macvlan …; device: an adapter
	MAC     string   `json:"mac"`
	MTU     int      `json:"mtu"` // bytes
	Up      bool     `json:"up"`
	Carrier bool     `json:"carrier"`           // up, and so is what it is connected to
	Address []string `json:"address,omitempty"` // with prefix length, without IPv6 link-local ones
}

// Read reads the interface ifname of the namespace ns. The error wraps fs.ErrNotExist if the namespace does not exist.
func Read(ns NS, ifname string) (State, error) {
	in := Inside{NS: ns, If: ifname}
	r, err := in.enter()
	if err != nil {
		return State{}, err
	}
	defer r.Close()
	l, err := in.link(r)
	if err != nil {
		return State{}, err
	}
	return read(r.Handle, l)
}

func read(h *netlink.Handle, l netlink.Link) (State, error) {
	a := l.Attrs()
	s := State{
		Name: a.Name, Type: l.Type(), MAC: a.HardwareAddr.String(), MTU: a.MTU, Up: isUp(l),
		Carrier: a.RawFlags&unix.IFF_LOWER_UP != 0,
	}
	addrs, err := addresses(h, l)
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
