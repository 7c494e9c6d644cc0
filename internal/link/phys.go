package link

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"berth/internal/refuse"
	"berth/internal/sriov"
	"berth/internal/step"
)

// Phys lends an adapter of the host to a node. When the node ends the host gets it back with its own name, MAC, MTU,
// alternative names and addresses, up or down as before. Routes over it are not recorded.
//
// Without a pin (see Pin) the kernel itself returns a real adapter when the namespace ends, and destroys a virtual one.
type Phys struct {
	Inside
	Parent   string   `json:"parent"`
	MAC      string   `json:"mac,omitempty"` // while lent; empty: the adapter's own
	MTU      int      `json:"mtu,omitempty"` // while lent, bytes; 0: the adapter's own
	Lock     string   `json:"host_lock"`     // file of the host-wide lock
	Original Original `json:"original"`

	Leases sriov.Leases `json:"leases,omitempty"` // a virtual function that a node has leased is not lent
}

// Kind implements step.Step.
func (p *Phys) Kind() string { return "link.phys" }

func (p *Phys) String() string {
	s := fmt.Sprintf("%s is %s of the host, lent until the node ends", p.If, p.Parent)
	if p.MAC != "" {
		s += ", MAC " + p.MAC
	}
	if p.MTU != 0 {
		s += fmt.Sprintf(", mtu %d", p.MTU)
	}
	return s
}

// Prepare records what the host gets back.
func (p *Phys) Prepare(ctx context.Context) error {
	h, err := host()
	if err != nil {
		return err
	}
	defer h.Close()
	l, err := byName(h, p.Parent)
	if err != nil {
		return fmt.Errorf("find link %s: %w", p.Parent, err)
	}
	if l == nil {
		return refuse.NotFoundf("no link %s on this host", p.Parent)
	}
	if p.Original, err = record(h, l); err != nil {
		return err
	}
	return p.Inside.Prepare(ctx)
}

// Do moves the link into the node.
func (p *Phys) Do(ctx context.Context) error {
	lock, err := Lock(ctx, p.Lock)
	if err != nil {
		return err
	}
	defer lock.Close()
	r, err := p.enter()
	if err != nil {
		return err
	}
	defer r.Close()
	if err := p.lend(r); err != nil {
		return err
	}
	l, err := p.link(r)
	if err != nil {
		return err
	}
	return set(r.Handle, l, p.MAC, p.MTU)
}

func (p *Phys) lend(r *room) error {
	h, err := host()
	if err != nil {
		return err
	}
	defer h.Close()
	l, err := p.Original.find(h, p.MAC)
	if err != nil {
		return err
	}
	if l == nil {
		return refuse.Busyf("link %s is not on the host any more", p.Parent)
	}
	if lease, ok := p.Leases.Read(p.Original.Device); ok && p.Original.Bus == "pci" {
		return refuse.Busyf("link %s is a virtual function that node %s has", p.Parent, lease)
	}
	for _, alt := range p.Original.AltNames { // they could clash in the node, and kernels before 6.5 lose them
		if err := h.LinkDelAltName(l, alt); err != nil && !errors.Is(err, unix.ENOENT) {
			return fmt.Errorf("take alternative name %s off %s: %w", alt, p.Parent, err)
		}
		step.Fault("alternative name taken")
	}
	err = move(nil, l.Attrs().Index, r.ns, p.If)
	if errors.Is(err, unix.EINVAL) {
		return refuse.Cannotf("lend another, or use mode macvlan on it", "the kernel does not move link %s to another network namespace: %w", p.Parent, err)
	}
	if err != nil {
		return fmt.Errorf("move link %s into the node: %w", p.Parent, err)
	}
	step.Fault("link lent")
	return nil
}

// Verify finds the link in the node.
func (p *Phys) Verify(context.Context) error {
	r, err := p.enter()
	if err != nil {
		return err
	}
	defer r.Close()
	l, err := p.link(r)
	if err == nil && !p.Original.is(l, p.MAC) {
		err = fmt.Errorf("%s in the node is not %s of the host", p.If, p.Parent)
	}
	return err
}

// Undo brings the link back to the host from wherever it is and restores its settings.
func (p *Phys) Undo(ctx context.Context) error {
	if p.Original.Name == "" { // Prepare was not reached: nothing was lent
		return nil
	}
	lock, err := Lock(ctx, p.Lock)
	if err != nil {
		return err
	}
	defer lock.Close()
	h, err := host()
	if err != nil {
		return err
	}
	defer h.Close()
	came, err := p.fetch(h)
	if err != nil {
		return err
	}
	l, err := p.await(ctx, h, came)
	if err != nil || l == nil {
		return err
	}
	return p.Original.restore(h, l)
}

// fetch moves the link from the node's namespace to the host's, if the link is there.
func (p *Phys) fetch(h *netlink.Handle) (bool, error) {
	r, err := p.enter()
	if gone(err) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	defer r.Close()
	l, err := p.Original.find(r.Handle, p.MAC)
	if err != nil || l == nil {
		return false, err
	}
	home, err := os.Open(self)
	if err != nil {
		return false, fmt.Errorf("open the host's network namespace: %w", err)
	}
	defer home.Close()
	name := p.Original.Name
	if other, err := byName(h, name); err != nil || other != nil {
		name = fmt.Sprintf("berth-lent%d", l.Attrs().Index) // restore reports the clash, once the link is on the host
	}
	if err := move(r.ns, l.Attrs().Index, home, name); err != nil {
		return false, fmt.Errorf("bring link %s home as %s: %w", p.If, name, err)
	}
	step.Fault("link brought home")
	return true, nil
}

// await finds the link on the host. If the namespace ended without Berth, the kernel returns a real adapter by itself,
// a moment later; a virtual one is gone for good.
func (p *Phys) await(ctx context.Context, h *netlink.Handle, came bool) (netlink.Link, error) {
	end := time.Now().Add(2 * time.Second)
	for {
		l, err := p.Original.find(h, p.MAC)
		if err != nil || l != nil || came || p.Original.virtual() || time.Now().After(end) {
			return l, err
		}
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("wait for link %s: %w", p.Original.Name, ctx.Err())
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// set gives l a MAC and an MTU; "" or 0 means no change. Some drivers require the link to be down for a new MAC.
func set(h *netlink.Handle, l netlink.Link, mac string, mtu int) error {
	a := l.Attrs()
	if mac != "" && mac != a.HardwareAddr.String() {
		hw, err := net.ParseMAC(mac)
		if err != nil {
			return fmt.Errorf("set MAC of %s: %w", a.Name, err)
		}
		if err := h.LinkSetHardwareAddr(l, hw); err != nil {
			return fmt.Errorf("set MAC of %s to %s: %w", a.Name, mac, err)
		}
		step.Fault("MAC set")
	}
	if mtu != 0 && mtu != a.MTU {
		if err := h.LinkSetMTU(l, mtu); err != nil {
			return fmt.Errorf("set MTU of %s to %d: %w", a.Name, mtu, err)
		}
	}
	return nil
}
