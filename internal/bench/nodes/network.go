package nodes

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"time"

	"berth/internal/bench/side"
	"berth/internal/bench/wire"
	"berth/internal/spec/vnode"
	"berth/internal/sys/layout"
	"berth/internal/sys/refuse"
)

// Maker makes a node and returns an arm that runs commands in it, and the function that removes it.
type Maker = func(context.Context, *vnode.Node) (side.Arm, func(), error)

// netSet holds the nodes of one network benchmark; one of them is the peer unless another machine is.
type netSet struct {
	at   layout.Layout
	one  Maker
	o    *wire.NetOptions
	peer string
	arms []wire.NetArm
	done []func()
}

// Network makes a node for each network and, where no other machine is the peer, one that is. It returns the arms, the host's
// first, and the function that removes the nodes.
func Network(ctx context.Context, at layout.Layout, one Maker, o *wire.NetOptions, peer string, networks []vnode.Network) ([]wire.NetArm, func(), error) {
	s := netSet{at: at, one: one, o: o, peer: peer}
	if err := s.make(ctx, networks); err != nil {
		s.close()
		return nil, nil, err
	}
	return s.arms, s.close, nil
}

func (s *netSet) close() {
	for _, d := range slices.Backward(s.done) {
		d()
	}
}

// make makes the nodes. Call close afterwards, also if it fails.
func (s *netSet) make(ctx context.Context, networks []vnode.Network) error {
	at := subnets{}
	if s.o.OwnPeer {
		var err error
		if at, err = s.ownPeer(ctx, networks); err != nil {
			return err
		}
		s.peer = at.direct(2).Addr().String()
	}
	s.arms = []wire.NetArm{{Name: "host", Run: side.Host, Peer: s.peer}}
	for _, n := range networks {
		peer := s.peer
		if s.o.OwnPeer {
			switch n.Mode {
			case vnode.Bridge:
				n.Address, peer = []string{at.bridged(3).String()}, at.bridged(2).Addr().String()
			default:
				n.Parent, n.Address = cableName(), []string{at.direct(3).String()}
			}
		}
		spec := Net(string(n.Mode), s.o.Self, []string{"/bin/sleep", "infinity"}, n)
		run, err := s.node(ctx, spec)
		if err != nil {
			return err
		}
		s.arms = append(s.arms, wire.NetArm{Name: string(n.Mode), Run: run, Peer: peer, Node: spec})
	}
	return nil
}

func (s *netSet) node(ctx context.Context, spec *vnode.Node) (side.Arm, error) {
	run, done, err := s.one(ctx, spec)
	if err != nil {
		return nil, err
	}
	s.done = append(s.done, done)
	return run, nil
}

// ownPeer makes the node that is the peer. The host reaches it through a pair of virtual links, which stands for a wire;
// macvlans use the host's end as their parent. Nodes of mode bridge reach the peer through the host-only bridge.
func (s *netSet) ownPeer(ctx context.Context, networks []vnode.Network) (subnets, error) {
	at, err := freeSubnets()
	if err != nil {
		return subnets{}, err
	}
	nw := vnode.Network{Mode: vnode.None}
	if slices.ContainsFunc(networks, func(n vnode.Network) bool { return n.Mode == vnode.Bridge }) {
		nw = vnode.Network{Mode: vnode.Bridge, Address: []string{at.bridged(2).String()}}
	}
	serve := []string{s.o.Self, "bench", "net", "--serve", "--port", fmt.Sprint(s.o.Port)}
	spec := Net("peer", s.o.Self, serve, nw)
	if _, err := s.node(ctx, spec); err != nil {
		return subnets{}, err
	}
	return at, Cable(s.at, spec.Name, cableName(), "cable0", at.direct(1), at.direct(2))
}

// cableName returns the name of the host's end of the pair of links to a peer on this machine.
func cableName() string { return fmt.Sprintf("berth-p%d", os.Getpid()) }

// subnets are two /24 networks for a measurement within this machine, from the block reserved for benchmarks
// (198.18.0.0/15, RFC 2544).
type subnets struct{ third byte }

func (s subnets) direct(host byte) netip.Prefix {
	return netip.PrefixFrom(netip.AddrFrom4([4]byte{198, 18, s.third, host}), 24)
}

func (s subnets) bridged(host byte) netip.Prefix {
	return netip.PrefixFrom(netip.AddrFrom4([4]byte{198, 19, s.third, host}), 24)
}

// FreeSubnet returns a /24 network in which this host has no address, of the block reserved for benchmarks.
func FreeSubnet() (netip.Prefix, error) {
	s, err := freeSubnets()
	return s.bridged(0), err
}

// freeSubnets finds networks in which this host has no address.
func freeSubnets() (subnets, error) {
	addrs, err := net.InterfaceAddrs()
	if err != nil {
		return subnets{}, fmt.Errorf("list the host's addresses: %w", err)
	}
	first := byte(time.Now().UnixNano() / int64(time.Microsecond)) // two runs rarely choose the same
	for i := range 256 {
		s := subnets{first + byte(i)}
		taken := slices.ContainsFunc(addrs, func(a net.Addr) bool {
			p, err := netip.ParsePrefix(a.String())
			return err == nil && (p.Overlaps(s.direct(0)) || p.Overlaps(s.bridged(0)))
		})
		if !taken {
			return s, nil
		}
	}
	return subnets{}, refuse.Busyf("this host has addresses in all of 198.18.0.0/15, which a peer of its own needs")
}
