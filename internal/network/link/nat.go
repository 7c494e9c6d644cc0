package link

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"slices"

	"berth/internal/host/netif"
	"berth/internal/network/nat"
	"berth/internal/spec/vnode"
	"berth/internal/sys/refuse"
	"berth/internal/sys/step"
)

// Given maps the interfaces of mode nat to the addresses that Berth gave them.
type Given map[string]*nat.ClaimAddress

// GivenBy returns what claims give to interfaces. Live takes the result as Input.Given.
func GivenBy(claims []step.Step) Given {
	all := Given{}
	for _, s := range claims {
		if c, ok := s.(*nat.ClaimAddress); ok {
			all[c.If] = c
		}
	}
	return all
}

// Addresses returns the addresses of a network, with those that Berth gave it.
func Addresses(node string, n vnode.Network, places nat.Places) []string {
	if n.Mode == vnode.NAT {
		if c, ok := places.Held(node + "/" + n.Name); ok {
			return c.Addresses()
		}
	}
	return n.Address
}

// addressed returns the network with the addresses and default routes that Berth gave it.
func (in *Input) addressed(n vnode.Network) vnode.Network {
	c := in.Given[n.Name]
	if n.Mode != vnode.NAT || c == nil {
		return n
	}
	n.Address, n.Routes = c.Addresses(), slices.Clone(n.Routes)
	for i, g := range c.Network.Gateways() {
		if i == 0 {
			n.Gateway = g.Addr().String()
		} else {
			n.Routes = append(n.Routes, vnode.Route{To: "::/0", Via: g.Addr().String()})
		}
	}
	return n
}

// readNAT adds to the facts what a network of mode nat needs.
func (f *Facts) readNAT(in Input) (err error) {
	i := slices.IndexFunc(in.Networks, func(n vnode.Network) bool { return n.Mode == vnode.NAT })
	if i < 0 {
		return nil
	}
	_, notRunning := os.Stat(in.Run)
	f.NAT, err = in.NAT.ReadFacts(context.Background(), in.Node, in.Networks[i], !errors.Is(notRunning, fs.ErrNotExist))
	return err
}

// natClaims returns the claims of a network of mode nat.
func (in *Input) natClaims(n vnode.Network) ([]step.Step, error) {
	if n.Mode != vnode.NAT {
		return nil, nil
	}
	f := in.Facts.NAT
	if err := f.Check(n); err != nil {
		return nil, err
	}
	steps := []step.Step{&nat.ClaimAddress{Places: in.NAT, Node: in.Node, If: n.Name, Network: f.Network, V4: f.Address}}
	for _, p := range n.Published() {
		steps = append(steps, &nat.ClaimPort{Places: in.NAT, Node: in.Node, If: n.Name, Port: p.String()})
	}
	return steps, nil
}

// checkNAT refuses a network of mode nat that this host cannot have.
func (in *Input) checkNAT(n vnode.Network) error {
	if in.Given[n.Name] == nil {
		return refuse.Invalidf("network %s: no address was claimed for it", n.Name)
	}
	return in.Facts.NAT.Check(n)
}

// natBridge returns the steps that make the bridge and connect an interface to it.
func (in *Input) natBridge(n vnode.Network, inside netif.Inside) (*nat.Bridge, *Veth) {
	mtu := in.mtu(n)
	return &nat.Bridge{Places: in.NAT, Node: in.Node, Live: in.Run, Network: in.Given[n.Name].Network, V4: in.Given[n.Name].V4},
		&Veth{
			Inside: inside, Node: in.Node, MAC: in.MACs[n.Name], MTU: mtu, HostMTU: mtu, Lock: in.HostLock,
			Bridge: in.NAT.Bridge, HostIf: hostName(in.Bridge, in.Node, n.Name),
		}
}

// publish returns the step that publishes a network's ports; nil if it has none.
func (in *Input) publish(n vnode.Network) *nat.Publish {
	c := in.Given[n.Name]
	if n.Mode != vnode.NAT || len(n.Ports) == 0 || c == nil {
		return nil
	}
	p := &nat.Publish{Places: in.NAT, If: n.Name}
	for _, a := range c.Network.Of(c.V4) {
		if a.Addr().Is4() {
			p.V4 = a.Addr()
		} else {
			p.V6 = a.Addr()
		}
	}
	for _, port := range n.Published() {
		p.Ports = append(p.Ports, port.String())
	}
	return p
}
