package netif

import (
	"errors"
	"fmt"
	"net"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"berth/internal/sys/fault"
	"berth/internal/sys/mac"
	"berth/internal/sys/refuse"
)

// Original is the state of a link on the host before it was lent. It identifies the link wherever it is, and Undo
// restores it.
type Original struct {
	Name     string      `json:"name"`
	Index    int         `json:"index"` // a move may change it: it only distinguishes two virtual links
	Type     string      `json:"type"`
	Bus      string      `json:"bus,omitempty"`     // pci, virtio …
	Device   string      `json:"device,omitempty"`  // on that bus
	PermMAC  mac.Address `json:"perm_mac,omitzero"` // burnt in
	MAC      mac.Address `json:"mac"`
	MTU      int         `json:"mtu"`
	Up       bool        `json:"up"`
	AltNames []string    `json:"altnames,omitempty"`
	Address  []Address   `json:"addresses,omitempty"`
}

// Address is an address of a lent link with the kernel's settings for it.
type Address struct {
	CIDR      string `json:"cidr"`
	Peer      string `json:"peer,omitempty"`
	Broadcast string `json:"broadcast,omitempty"`
	Label     string `json:"label,omitempty"`
	Scope     int    `json:"scope,omitempty"`
	Flags     int    `json:"flags,omitempty"`
	Valid     int    `json:"valid,omitempty"`     // lifetime in seconds, as the kernel counts it
	Preferred int    `json:"preferred,omitempty"` // likewise
}

// keptFlags are the address flags that a user sets; the kernel manages the others.
const keptFlags = unix.IFA_F_NODAD | unix.IFA_F_NOPREFIXROUTE | unix.IFA_F_MANAGETEMPADDR | unix.IFA_F_HOMEADDRESS

// Record returns the state of a link on the host.
func Record(h *netlink.Handle, l netlink.Link) (Original, error) {
	a := l.Attrs()
	o := Original{
		Name: a.Name, Index: a.Index, Type: l.Type(), Bus: a.ParentDevBus, Device: a.ParentDev,
		PermMAC: mac.Of(a.PermHWAddr), MAC: mac.Of(a.HardwareAddr), MTU: a.MTU, Up: IsUp(l), AltNames: a.AltNames,
	}
	addrs, err := Addresses(h, l)
	if err != nil {
		return o, err
	}
	for _, ad := range addrs {
		// Addresses announced by routers come back by themselves.
		if ad.IP.To4() == nil && ad.Flags&unix.IFA_F_PERMANENT == 0 {
			continue
		}
		k := Address{CIDR: ad.IPNet.String(), Label: ad.Label, Scope: ad.Scope, Flags: ad.Flags & keptFlags, Valid: ad.ValidLft, Preferred: ad.PreferedLft}
		if ad.Peer != nil && ad.Peer.String() != k.CIDR {
			k.Peer = ad.Peer.String()
		}
		if ad.Broadcast != nil {
			k.Broadcast = ad.Broadcast.String()
		}
		o.Address = append(o.Address, k)
	}
	return o, nil
}

// Addresses returns the addresses of a link.
func Addresses(h *netlink.Handle, l netlink.Link) ([]netlink.Addr, error) {
	addrs, err := Dump(func() ([]netlink.Addr, error) { return h.AddrList(l, netlink.FAMILY_ALL) })
	if err != nil {
		return nil, fmt.Errorf("list addresses of %s: %w", l.Attrs().Name, err)
	}
	return addrs, nil
}

// Virtual reports whether the link belongs to no device, so that it ends with its namespace.
func (o *Original) Virtual() bool { return o.Device == "" && o.PermMAC.IsZero() }

// Is reports whether l is this link. A device is identified by its bus address and its permanent MAC (by both, since
// some devices have several ports), a virtual link by its type and its MAC, original or lent.
func (o *Original) Is(l netlink.Link, lentMAC mac.Address) bool {
	if l == nil || l.Type() != o.Type {
		return false
	}
	a := l.Attrs()
	if !o.Virtual() {
		return a.ParentDevBus == o.Bus && a.ParentDev == o.Device && mac.Of(a.PermHWAddr) == o.PermMAC
	}
	now := mac.Of(a.HardwareAddr)
	return now == o.MAC || !lentMAC.IsZero() && now == lentMAC
}

// Find looks for the link in h's namespace; nil if it is not there.
func (o *Original) Find(h *netlink.Handle, lentMAC mac.Address) (netlink.Link, error) {
	links, err := List(h)
	if err != nil {
		return nil, err
	}
	var best netlink.Link
	for _, l := range links {
		if o.Is(l, lentMAC) && (best == nil || l.Attrs().Index == o.Index) {
			best = l
		}
	}
	return best, nil
}

// Restore gives l, which is on the host, its original settings. It does not touch settings that are still the same.
func (o *Original) Restore(h *netlink.Handle, l netlink.Link) error {
	if err := o.restoreName(h, l); err != nil {
		return err
	}
	fault.Point("lent link named")
	if err := Set(h, l, o.MAC, o.MTU); err != nil {
		return err
	}
	for _, alt := range o.AltNames {
		if slices.Contains(l.Attrs().AltNames, alt) {
			continue
		}
		// udev may have added it already.
		if err := h.LinkAddAltName(l, alt); err != nil && !errors.Is(err, unix.EEXIST) {
			return fmt.Errorf("give link %s its alternative name %s: %w", o.Name, alt, err)
		}
	}
	if o.Up && !IsUp(l) {
		if err := h.LinkSetUp(l); err != nil {
			return fmt.Errorf("set link %s up: %w", o.Name, err)
		}
		fault.Point("lent link up")
	}
	return o.restoreAddresses(h, l)
}

// restoreName gives l its original name. It sets the link down if its name or MAC changes: older kernels rename only
// links that are down, and some drivers change a MAC only then.
func (o *Original) restoreName(h *netlink.Handle, l netlink.Link) error {
	a := l.Attrs()
	if a.Name == o.Name && mac.Of(a.HardwareAddr) == o.MAC {
		return nil
	}
	if IsUp(l) {
		if err := h.LinkSetDown(l); err != nil {
			return fmt.Errorf("set link %s down: %w", a.Name, err)
		}
		a.Flags &^= net.FlagUp
	}
	if a.Name == o.Name {
		return nil
	}
	if other, err := ByName(h, o.Name); err == nil && other != nil && other.Attrs().Index != a.Index {
		return refuse.Busyf("link %s is home as %s: another link has its name; rename that one and repeat", o.Name, a.Name)
	}
	if slices.Contains(a.AltNames, o.Name) { // udev may have added it as an alternative name, which blocks the rename
		if err := h.LinkDelAltName(l, o.Name); err != nil && !errors.Is(err, unix.ENOENT) {
			return fmt.Errorf("take alternative name %s off %s: %w", o.Name, a.Name, err)
		}
	}
	if err := h.LinkSetName(l, o.Name); err != nil {
		return fmt.Errorf("rename link %s to %s: %w", a.Name, o.Name, err)
	}
	return nil
}

func (o *Original) restoreAddresses(h *netlink.Handle, l netlink.Link) error {
	now, err := Addresses(h, l)
	if err != nil {
		return err
	}
	for _, want := range o.Address {
		if slices.ContainsFunc(now, func(ad netlink.Addr) bool { return ad.IPNet.String() == want.CIDR }) {
			continue
		}
		ad, err := want.parse()
		if err == nil {
			err = h.AddrReplace(l, ad)
		}
		if err != nil {
			return fmt.Errorf("give link %s its address %s: %w", o.Name, want.CIDR, err)
		}
	}
	return nil
}

func (w Address) parse() (*netlink.Addr, error) {
	ad, err := netlink.ParseAddr(w.CIDR)
	if err != nil {
		return nil, err
	}
	ad.Label, ad.Scope, ad.Flags, ad.ValidLft, ad.PreferedLft = w.Label, w.Scope, w.Flags, w.Valid, w.Preferred
	ad.Broadcast = net.IPv4zero // none unless recorded: AddrReplace would invent one
	if w.Broadcast != "" {
		ad.Broadcast = net.ParseIP(w.Broadcast).To4()
	}
	if w.Peer != "" {
		if ad.Peer, err = netlink.ParseIPNet(w.Peer); err != nil {
			return nil, err
		}
	}
	return ad, nil
}
