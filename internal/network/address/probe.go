package address

import (
	"context"
	"fmt"
	"net/netip"
	"strings"

	"github.com/vishvananda/netlink"

	"berth/internal/host/netif"
	"berth/internal/sys/mac"
	"berth/internal/sys/refuse"
)

// Probe asks the network whether an address is in use before the node gets it, by ARP (RFC 5227) or neighbour
// solicitation (RFC 4862), from the node's own interface and MAC. It sets the interface up, still without addresses.
//
// Without a carrier no machine can be asked and no address can clash: Probe succeeds. It also succeeds if the other
// machine answers late or is off.
type Probe struct {
	netif.Inside
	MAC     mac.Address `json:"mac,omitzero"` // empty: any
	Address []string    `json:"addresses"`    // with prefix length
	Adapter bool        `json:"adapter"`      // a real adapter, whose carrier comes late
}

// Kind implements step.Step.
func (p *Probe) Kind() string { return "link.probe" }

func (p *Probe) String() string {
	return fmt.Sprintf("%s that nobody on its network has %s", p.If, strings.Join(p.Address, ", "))
}

// Do probes the addresses; refuse.Busy names the MAC that answered.
func (p *Probe) Do(ctx context.Context) error {
	return p.On(func(r *netif.Socket, l netlink.Link) error { return p.probe(ctx, r, l) })
}

func (p *Probe) probe(ctx context.Context, r *netif.Socket, l netlink.Link) error {
	if err := netif.BringUp(r.Handle, l, p.MAC); err != nil {
		return err
	}
	if ok, err := p.Carrier(ctx, r, p.Adapter); err != nil || !ok {
		return err
	}
	q := &question{index: l.Attrs().Index, mac: netif.MAC(l)}
	if !q.mac.IsEthernet() { // not Ethernet: no ARP
		return nil
	}
	var err error
	if q.addrs, err = addrsOf(p.Address); err != nil {
		return fmt.Errorf("probe the addresses of %s: %w", p.If, err)
	}
	var addr netip.Addr
	var who mac.Address
	if err := netif.Within(r.NS, func() (err error) { addr, who, err = q.ask(ctx); return err }); err != nil {
		return fmt.Errorf("probe the addresses of %s: %w", p.If, err)
	}
	if !who.IsZero() {
		return refuse.Busyf("address %s of %s is in use on its network by %s", addr, p.If, who)
	}
	return nil
}

// Verify has nothing to read back.
func (p *Probe) Verify(context.Context) error { return nil }

// Undo does nothing: the probe leaves no state, and another step removes the interface.
func (p *Probe) Undo(context.Context) error { return nil }
