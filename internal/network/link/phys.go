package link

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"berth/internal/host/netif"
	"berth/internal/network/sriov"
	"berth/internal/sys/fault"
	"berth/internal/sys/mac"
	"berth/internal/sys/refuse"
)

// Phys lends an adapter of the host to a node. When the node ends the host gets it back with its own name, MAC, MTU,
// alternative names and addresses, up or down as before. Routes over it are not recorded.
//
// Without a pin (see netif.Pin) the kernel itself returns a real adapter when the namespace ends, and destroys a virtual one.
type Phys struct {
	netif.Inside
	Parent   string         `json:"parent"`
	MAC      mac.Address    `json:"mac,omitzero"`  // while lent; empty: the adapter's own
	MTU      int            `json:"mtu,omitempty"` // while lent, bytes; 0: the adapter's own
	Lock     string         `json:"host_lock"`     // file of the host-wide lock
	Original netif.Original `json:"original"`

	Leases sriov.Leases `json:"leases,omitempty"` // a virtual function that a node has leased is not lent
}

// Kind implements step.Step.
func (p *Phys) Kind() string { return "link.phys" }

func (p *Phys) String() string {
	s := fmt.Sprintf("%s is %s of the host, lent until the node ends", p.If, p.Parent)
	if !p.MAC.IsZero() {
		s += ", MAC " + p.MAC.String()
	}
	if p.MTU != 0 {
		s += fmt.Sprintf(", mtu %d", p.MTU)
	}
	return s
}

// Prepare records the settings to which Undo restores the adapter.
func (p *Phys) Prepare(ctx context.Context) error {
	h, err := netif.Host()
	if err != nil {
		return err
	}
	defer h.Close()
	l, err := netif.ByName(h, p.Parent)
	if err != nil {
		return fmt.Errorf("find link %s: %w", p.Parent, err)
	}
	if l == nil {
		return refuse.NotFoundf("no link %s on this host", p.Parent)
	}
	if p.Original, err = netif.Record(h, l); err != nil {
		return err
	}
	return p.Inside.Prepare(ctx)
}

// Do moves the link into the node.
func (p *Phys) Do(ctx context.Context) error {
	lock, err := netif.Lock(ctx, p.Lock)
	if err != nil {
		return err
	}
	defer lock.Close()
	r, err := p.Open()
	if err != nil {
		return err
	}
	defer r.Close()
	if err := p.lend(r); err != nil {
		return err
	}
	l, err := p.Link(r)
	if err != nil {
		return err
	}
	return netif.Set(r.Handle, l, p.MAC, p.MTU)
}

func (p *Phys) lend(r *netif.Socket) error {
	h, err := netif.Host()
	if err != nil {
		return err
	}
	defer h.Close()
	l, err := p.Original.Find(h, p.MAC)
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
		fault.Point("alternative name taken")
	}
	err = netif.Move(nil, l.Attrs().Index, r.NS, p.If)
	if errors.Is(err, unix.EINVAL) {
		return refuse.Cannotf("lend another, or use mode macvlan on it", "the kernel does not move link %s to another network namespace: %w", p.Parent, err)
	}
	if err != nil {
		return fmt.Errorf("move link %s into the node: %w", p.Parent, err)
	}
	fault.Point("link lent")
	return nil
}

// Verify finds the link in the node.
func (p *Phys) Verify(context.Context) error {
	return p.On(func(_ *netif.Socket, l netlink.Link) error {
		if !p.Original.Is(l, p.MAC) {
			return fmt.Errorf("%s in the node is not %s of the host", p.If, p.Parent)
		}
		return nil
	})
}

// Undo brings the link back to the host from wherever it is and restores its settings.
func (p *Phys) Undo(ctx context.Context) error {
	if p.Original.Name == "" { // Prepare was not reached: nothing was lent
		return nil
	}
	lock, err := netif.Lock(ctx, p.Lock)
	if err != nil {
		return err
	}
	defer lock.Close()
	h, err := netif.Host()
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
	return p.Original.Restore(h, l)
}

// fetch moves the link from the node's namespace to the host's, if the link is there.
func (p *Phys) fetch(h *netlink.Handle) (bool, error) {
	r, err := p.Open()
	if netif.Absent(err) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	defer r.Close()
	l, err := p.Original.Find(r.Handle, p.MAC)
	if err != nil || l == nil {
		return false, err
	}
	home, err := os.Open(netif.Self)
	if err != nil {
		return false, fmt.Errorf("open the host's network namespace: %w", err)
	}
	defer home.Close()
	name := p.Original.Name
	if other, err := netif.ByName(h, name); err != nil || other != nil {
		name = fmt.Sprintf("berth-lent%d", l.Attrs().Index) // restore reports the clash, once the link is on the host
	}
	if err := netif.Move(r.NS, l.Attrs().Index, home, name); err != nil {
		return false, fmt.Errorf("bring link %s home as %s: %w", p.If, name, err)
	}
	fault.Point("link brought home")
	return true, nil
}

// await finds the link on the host. If the namespace ended without Berth, the kernel returns a real adapter by itself,
// a moment later; a virtual one is gone for good.
func (p *Phys) await(ctx context.Context, h *netlink.Handle, came bool) (netlink.Link, error) {
	end := time.Now().Add(2 * time.Second)
	for {
		l, err := p.Original.Find(h, p.MAC)
		if err != nil || l != nil || came || p.Original.Virtual() || time.Now().After(end) {
			return l, err
		}
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("wait for link %s: %w", p.Original.Name, ctx.Err())
		case <-time.After(10 * time.Millisecond):
		}
	}
}
