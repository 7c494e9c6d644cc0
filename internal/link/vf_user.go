package link

import (
	"slices"
	"strings"

	"github.com/vishvananda/netlink"

	"berth/internal/sriov"
)

// vfUsers tells who uses the host's virtual functions, by what the host's links were at one moment.
type vfUsers struct {
	h      *netlink.Handle
	leases sriov.Leases
	links  []netlink.Link
	uppers map[int][]string // by index: names, in the host's namespace
	guests map[int][]string // by index: MACs, in any
}

func newVFUsers(h *netlink.Handle, leases sriov.Leases, links []netlink.Link) (*vfUsers, error) {
	others, err := guests(h)
	return &vfUsers{h: h, leases: leases, links: links, uppers: uppers(links), guests: others}, err
}

// VFUser says who uses a virtual function; "" if nobody does: it may be taken away.
func VFUser(leases sriov.Leases, vf sriov.VF) (string, error) {
	if _, held := leases.Read(vf.PCI); !held && vf.Driver == "" {
		return "", nil
	}
	h, err := host()
	if err != nil {
		return "", err
	}
	defer h.Close()
	links, err := listLinks(h)
	if err != nil {
		return "", err
	}
	users, err := newVFUsers(h, leases, links)
	if err != nil {
		return "", err
	}
	return users.of(vf)
}

// of says who uses a virtual function; "" if it is free: no node has it, and it is a link of the host's that the host has
// not given an address, made a port of something or built something on, and that no macvlan elsewhere is on.
func (u *vfUsers) of(vf sriov.VF) (string, error) {
	if l, ok := u.leases.Read(vf.PCI); ok {
		return "node " + l.String(), nil
	}
	switch {
	case vf.Driver == "":
		return "nobody, but it has no driver", nil
	case strings.HasPrefix(vf.Driver, "vfio"):
		return "driver " + vf.Driver + " (a virtual machine)", nil
	case vf.Link == "":
		return "another network namespace", nil
	}
	i := slices.IndexFunc(u.links, func(l netlink.Link) bool { return l.Attrs().Name == vf.Link })
	if i < 0 {
		return "what just took it", nil
	}
	l := u.links[i]
	if on := u.uppers[l.Attrs().Index]; len(on) > 0 {
		return "the host, as " + vf.Link + " under " + strings.Join(on, ", "), nil
	}
	if macs := u.guests[l.Attrs().Index]; len(macs) > 0 {
		return "a link on " + vf.Link + " in another network namespace, with MAC " + strings.Join(macs, ", "), nil
	}
	addrs, err := addresses(u.h, l)
	if err != nil {
		return "", err
	}
	host := slices.ContainsFunc(addrs, func(a netlink.Addr) bool { return !a.IP.IsLinkLocalUnicast() })
	if host || l.Attrs().MasterIndex != 0 {
		return "the host, as " + vf.Link, nil
	}
	return "", nil
}
