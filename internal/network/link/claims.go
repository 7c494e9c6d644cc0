package link

import (
	"net/netip"
	"os"
	"slices"

	"berth/internal/host/netif"
	"berth/internal/network/address"
	"berth/internal/spec/vnode"
	"berth/internal/sys/mac"
	"berth/internal/sys/refuse"
	"berth/internal/sys/step"
)

// addressClaims returns the claims for the addresses of one network.
func (in *Input) addressClaims(n vnode.Network) ([]step.Step, error) {
	if n.Mode != vnode.Bridge || n.Parent != "" {
		return nil, nil
	}
	var steps []step.Step
	for _, cidr := range n.Address {
		p, err := netip.ParsePrefix(cidr)
		if err != nil {
			return nil, refuse.Invalidf("address of network %s: %w", n.Name, err)
		}
		steps = append(steps, &address.ClaimAddress{Dir: in.AddressDir, Node: in.Node, If: n.Name, Address: p.Addr().String()})
	}
	return steps, nil
}

// Claims returns the steps whose results last until the node is removed: one per MAC, one per address on the host-only
// bridge. It refuses (Busy) a node whose MAC a link of the host has got since the node claimed it: a claim binds other
// nodes, not the host. It uses these fields of in: Node, Networks, SiteID, the folders, HostLock, Leases, and the part
// of Facts that ReadClaims fills in.
func Claims(in Input) ([]step.Step, error) {
	if err := in.checkMACs(); err != nil {
		return nil, err
	}
	var steps []step.Step
	for _, n := range in.Networks {
		addrs, err := in.addressClaims(n)
		if err != nil {
			return nil, err
		}
		steps = append(steps, addrs...)
		given, err := in.natClaims(n)
		if err != nil {
			return nil, err
		}
		steps = append(steps, given...)
		c, err := in.macClaim(n)
		if err != nil {
			return nil, err
		}
		if c != nil {
			steps = append(steps, c)
		}
	}
	return steps, nil
}

// checkMACs refuses MACs that the node has claimed and that something else has as well.
func (in *Input) checkMACs() error {
	for _, n := range in.Networks {
		if who := in.Facts.Clashes[n.Name]; who != "" {
			return refuse.Busyf("MAC %s, which %s of node %s holds, is that of %s now: two alike would lose each other's packets; give %s another",
				in.Facts.Claimed[n.Name], n.Name, in.Node, who, who)
		}
	}
	return nil
}

// macClaim returns the claim for the MAC of one network; nil if it needs none.
func (in *Input) macClaim(n vnode.Network) (*address.ClaimMAC, error) {
	from, err := n.MACFrom()
	if err != nil {
		return nil, refuse.Invalidf("MAC of network %s: %w", n.Name, err)
	}
	if n.Mode == vnode.None || from == (vnode.MACFrom{}) {
		return nil, nil
	}
	c := &address.ClaimMAC{
		Dir: in.MACDir, Lock: in.HostLock, SiteID: in.SiteID, Node: in.Node, If: n.Name, Leases: in.Leases,
		Auto: from.Auto, Pool: from.Pool, MAC: from.Given, Site: in.Site,
	}
	if n.Mode == vnode.Phys {
		c.Lent = n.Parent
	}
	switch {
	case c.Auto:
		c.MAC = c.Derived()[0]
	case c.Pool != "":
		c.PoolDir, c.MAC = in.PoolDir, in.Facts.Pooled[n.Name]
	}
	return c, nil
}

// macClaims returns the claims for the MACs of the networks.
func (in *Input) macClaims() ([]*address.ClaimMAC, error) {
	var all []*address.ClaimMAC
	for _, n := range in.Networks {
		c, err := in.macClaim(n)
		if err != nil {
			return nil, err
		}
		if c != nil {
			all = append(all, c)
		}
	}
	return all, nil
}

// ReadClaims adds to the facts what Claims must know of MACs: which ones the node would get from its pools, and which of its
// claimed ones another link or virtual function has as well. It skips the latter for a running node. It uses the same fields of
// in as Claims, and Run.
func (f *Facts) ReadClaims(in Input) error {
	claims, err := in.macClaims()
	if err != nil {
		return err
	}
	if err := f.readNAT(in); err != nil {
		return err
	}
	if _, err := os.Stat(in.Run); err != nil {
		if err := f.readClashes(claims); err != nil {
			return err
		}
	}
	claims = slices.DeleteFunc(claims, func(c *address.ClaimMAC) bool { return c.Pool == "" })
	f.Pooled, err = chooseMACs(claims, map[mac.Address]string{})
	return err
}

// readClashes finds the claimed MACs that a link or a virtual function of the host has too.
func (f *Facts) readClashes(claims []*address.ClaimMAC) (err error) {
	f.Claimed, f.Clashes = map[string]mac.Address{}, map[string]string{}
	links := f.list
	for _, c := range claims {
		claimed, ok := c.Claimed()
		if !ok {
			continue
		}
		if links == nil {
			if links, err = netif.HostLinks(); err != nil {
				return err
			}
		}
		f.Claimed[c.If] = claimed
		if who := c.InUse(links)[claimed]; who != "" {
			f.Clashes[c.If] = who
		}
	}
	return nil
}

// ChooseMACs returns by interface the MAC that each network would claim now, and adds these MACs to taken, which maps
// MACs to their owners. It reads the host and claims nothing. It leaves out networks without a MAC of their own.
func ChooseMACs(in Input, taken map[mac.Address]string) (map[string]mac.Address, error) {
	claims, err := in.macClaims()
	if err != nil {
		return nil, err
	}
	return chooseMACs(claims, taken)
}

func chooseMACs(claims []*address.ClaimMAC, taken map[mac.Address]string) (map[string]mac.Address, error) {
	macs := map[string]mac.Address{}
	for _, c := range claims {
		chosen, err := c.Choose(taken)
		if err != nil {
			return nil, err
		}
		macs[c.If], taken[chosen] = chosen, "node "+c.Owner()
	}
	return macs, nil
}

// MACs returns the MACs of claims by interface: the claimed MAC if the step is done, else its first choice. Live takes
// the result as Input.MACs.
func MACs(claims []step.Step) map[string]mac.Address {
	macs := map[string]mac.Address{}
	for _, s := range claims {
		if c, ok := s.(*address.ClaimMAC); ok {
			macs[c.If] = c.MAC
		}
	}
	return macs
}
