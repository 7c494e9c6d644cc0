package link

import (
	"berth/internal/host/netif"
	"berth/internal/network/shape"
	"berth/internal/spec/vnode"
	"berth/internal/sys/proof"
	"berth/internal/sys/refuse"
)

// checkRate refuses a rate that the kernel or the link cannot provide.
func (in *Input) checkRate(n vnode.Network, r *shape.Rate) error {
	link := in.Facts.Links[n.Parent].Speed
	switch lacks := in.Facts.Lacks[r.Way]; {
	case lacks != "":
		return refuse.Cannotf(shapingRemedy, "%s: this kernel cannot limit it: %s", r.Key, lacks)
	case r.Bits < shape.Lowest || r.Bits > shape.Highest:
		return refuse.Cannotf("ask for a rate in between, or "+vnode.Max, "%s %s: the kernel's token bucket holds %s to %s", r.Key, r.Asked, shape.Lowest, shape.Highest)
	case link != 0 && r.Bits > link:
		return refuse.Cannotf("ask for less, or for "+vnode.Max, "%s %s is more than the %s of %s", r.Key, r.Asked, link, n.Parent)
	}
	return nil
}

const shapingRemedy = "use a kernel with CONFIG_NET_SCH_TBF, and for rx of macvlan, phys and sriov CONFIG_IFB, CONFIG_NET_SCH_INGRESS, " +
	"CONFIG_NET_CLS_U32, CONFIG_NET_ACT_MIRRED (Debian, Ubuntu: package linux-modules-extra or linux-image), or leave the rate out"

// Rates returns the rates that the networks ask for. It is pure and refuses (Cannot) a rate that this kernel or the
// link cannot provide.
func Rates(in Input) ([]*shape.Rate, error) {
	var all []*shape.Rate
	for _, n := range in.Networks {
		some, err := in.rates(n)
		if err != nil {
			return nil, err
		}
		all = append(all, some...)
	}
	return all, nil
}

// rates returns the rates of one network.
func (in *Input) rates(n vnode.Network) ([]*shape.Rate, error) {
	var all []*shape.Rate
	for _, d := range []struct {
		kind proof.Kind
		bits vnode.BitRate
		way  netif.Way
	}{{proof.NetTX, n.Rate.TX, netif.Egress}, {proof.NetRX, n.Rate.RX, receiveWay(n.Mode)}} {
		if d.bits == 0 || n.Mode == vnode.None {
			continue
		}
		r := shape.NewRate(netif.Inside{NS: in.NS, If: n.Name}, d.kind, d.bits, d.way)
		if n.Mode == vnode.Bridge && n.Parent == "" {
			r.Hub = in.Hub
		}
		if err := in.checkRate(n, r); err != nil {
			return nil, err
		}
		all = append(all, r)
	}
	return all, nil
}

func receiveWay(m vnode.Mode) netif.Way {
	if m == vnode.Bridge || m == vnode.NAT {
		return netif.Peer
	}
	return netif.Ingress
}
