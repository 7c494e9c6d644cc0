package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"berth/internal/bench"
	"berth/internal/node"
	"berth/internal/refuse"
	"berth/internal/vnode"
)

// netFlags are the flags of berth bench net.
type netFlags struct {
	bench.NetOptions
	peer, jsonFile string
	networks       []string
	serve          bool
}

func (a *app) benchNetCmd() *cobra.Command {
	var f netFlags
	c := &cobra.Command{
		Use: "net", Short: "the same network traffic from the host and from nodes, in turn",
		Long: `Run iperf3, in both directions, and round trips to a peer: from the host, from
the host again (the null arm), and from a throw-away node for each --network,
in random alternating order. Each line gets how much worse the node is than the
host with a 95 % interval, a verdict against the margin, and the smallest
margin that this run could have decided. CPU s/GB is what all CPUs of this
machine were busy for 10^9 bytes.

The peer is another machine on which berth bench net --serve runs; then each
--network needs an address in the peer's network. Without --peer, a node on
this machine is the peer: that measures the host's software path, no wire.
20 s after 3 s of warm-up a trial by default, about half an hour in all.
share/doc/berth/METHOD.md explains the method. Interrupted, it prints what was
measured and marks it partial.`,
		Example: `  berth bench net --quick
  berth bench net --serve                    on the peer
  berth bench net --peer 192.0.2.9 --json net.json \
    --network macvlan:eth0,192.0.2.50/24 --network bridge:br0,192.0.2.51/24`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if f.serve {
				return a.serve(cmd, &f)
			}
			return a.benchNet(cmd, &f)
		},
	}
	fl := c.Flags()
	fl.StringVar(&f.peer, "peer", "", "`ADDRESS` of the peer (default: one on this machine)")
	fl.StringArrayVar(&f.networks, "network", nil, "a `NETWORK` to measure, MODE:PARENT,ADDRESS…; without --peer: bridge or macvlan (default both)")
	fl.BoolVar(&f.serve, "serve", false, "be the peer, until Ctrl-C")
	fl.IntVar(&f.Port, "port", 0, fmt.Sprintf("iperf3's TCP `PORT` at the peer; round trips use the next (default %d)", bench.DefaultPort))
	fl.BoolVar(&f.Quick, "quick", false, "1 s after 1 s of warm-up a trial, done within three minutes")
	fl.DurationVar(&f.Run, "run", 0, "length of one trial, a `TIME` (default 20s, 1s with --quick)")
	fl.DurationVar(&f.Warm, "warm", 0, "warm-up of a trial, a `TIME` (default 3s, 1s with --quick)")
	fl.IntVar(&f.Pairs, "pairs", 0, fmt.Sprintf("`N` pairs a line (default %d, fewer give no interval)", bench.MinPairs))
	fl.Float64Var(&f.MarginPct, "margin", 0, "largest difference that counts as none, in `PERCENT` (default 5, 10 with --quick)")
	fl.Uint64Var(&f.Seed, "seed", 0, "`SEED` of the order of trials (default: a random one, reported)")
	fl.StringVar(&f.jsonFile, "json", "", "write every trial to `FILE` as JSON; - is standard output")
	return c
}

// serve runs the peer until it is interrupted.
func (a *app) serve(cmd *cobra.Command, f *netFlags) error {
	if f.Port == 0 {
		f.Port = bench.DefaultPort
	}
	if f.peer != "" || len(f.networks) > 0 {
		return refuse.Invalidf("--serve goes with --port alone")
	}
	return bench.Serve(cmd.Context(), a.Out, f.Port)
}

func (a *app) benchNet(cmd *cobra.Command, f *netFlags) (err error) {
	networks, err := f.parse()
	if err != nil {
		return err
	}
	if err := f.Complete(); err != nil {
		return err
	}
	if err := bench.HasIperf(); err != nil {
		return err
	}
	if f.Self, err = os.Executable(); err != nil {
		return fmt.Errorf("find this program: %w", err)
	}
	b, err := a.open()
	if err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(cmd.Context(), syscall.SIGHUP)
	defer stop()
	set := netSet{b: b, f: f}
	defer set.close()
	if err := set.make(ctx, networks); err != nil {
		return err
	}
	var progress func(bench.Progress)
	end := func() {}
	if a.onTerminal() {
		progress, end = bench.Bar(a.Err)
	}
	report, err := bench.RunNet(ctx, f.NetOptions, set.arms, progress)
	end()
	if report == nil {
		return err
	}
	return errors.Join(a.writeReport(report, f.jsonFile), err)
}

// parse returns the networks to measure.
func (f *netFlags) parse() ([]vnode.Network, error) {
	f.OwnPeer = f.peer == ""
	if f.OwnPeer && f.networks == nil {
		f.networks = []string{string(vnode.Bridge), string(vnode.Macvlan)}
	}
	if !f.OwnPeer {
		if addr, err := netip.ParseAddr(f.peer); err != nil || addr.IsUnspecified() || addr.IsMulticast() {
			return nil, refuse.Invalidf("--peer %s: want an address, for example 192.0.2.9", f.peer)
		}
		if len(f.networks) == 0 {
			return nil, refuse.Invalidf("--peer needs a --network by which a node reaches it, for example macvlan:eth0,192.0.2.50/24")
		}
	}
	var all []vnode.Network
	for _, s := range f.networks {
		n := parseNetwork(s)
		switch {
		case slices.ContainsFunc(all, func(o vnode.Network) bool { return o.Mode == n.Mode }):
			return nil, refuse.Invalidf("--network %s: mode %s is measured already", s, n.Mode)
		case f.OwnPeer && (n.Mode != vnode.Bridge && n.Mode != vnode.Macvlan):
			return nil, refuse.Invalidf("--network %s: without --peer only bridge and macvlan can be measured", s)
		case f.OwnPeer && (n.Parent != "" || len(n.Address) > 0):
			return nil, refuse.Invalidf("--network %s: without --peer, parent and address are Berth's to choose: give the mode alone", s)
		case !f.OwnPeer && (n.Parent == "" || len(n.Address) == 0):
			return nil, refuse.Invalidf("--network %s: with --peer, a parent and an address are needed: %s:eth0,192.0.2.50/24", s, n.Mode)
		}
		all = append(all, n)
	}
	return all, nil
}

// netSet holds the nodes of one run; one of them is the peer unless --peer names another machine.
type netSet struct {
	b    *node.Berth
	f    *netFlags
	arms []bench.NetArm
	done []func()
}

func (s *netSet) close() {
	for _, d := range slices.Backward(s.done) {
		d()
	}
}

// make makes the nodes. Call close afterwards, also if make fails.
func (s *netSet) make(ctx context.Context, networks []vnode.Network) error {
	at := subnets{}
	if s.f.OwnPeer {
		var err error
		if at, err = s.ownPeer(ctx, networks); err != nil {
			return err
		}
		s.f.peer = at.direct(2).Addr().String()
	}
	s.arms = []bench.NetArm{{Name: "host", Run: bench.Host, Peer: s.f.peer}}
	for _, n := range networks {
		peer := s.f.peer
		if s.f.OwnPeer {
			switch n.Mode {
			case vnode.Bridge:
				n.Address, peer = []string{at.bridged(3).String()}, at.bridged(2).Addr().String()
			default:
				n.Parent, n.Address = cableName(), []string{at.direct(3).String()}
			}
		}
		spec := node.BenchNetNode(string(n.Mode), s.f.Self, []string{"/bin/sleep", "infinity"}, n)
		run, err := s.node(ctx, spec)
		if err != nil {
			return err
		}
		s.arms = append(s.arms, bench.NetArm{Name: string(n.Mode), Run: run, Peer: peer, Node: spec})
	}
	return nil
}

func (s *netSet) node(ctx context.Context, spec *vnode.Node) (bench.Arm, error) {
	if err := valid(spec); err != nil {
		return nil, err
	}
	run, done, err := s.b.BenchArm(ctx, spec)
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
	serve := []string{s.f.Self, "bench", "net", "--serve", "--port", fmt.Sprint(s.f.Port)}
	spec := node.BenchNetNode("peer", s.f.Self, serve, nw)
	if _, err := s.node(ctx, spec); err != nil {
		return subnets{}, err
	}
	return at, s.b.BenchCable(spec.Name, cableName(), "cable0", at.direct(1), at.direct(2))
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

// benchCPUCmd is the hidden command that an arm runs around iperf3.
func (a *app) benchCPUCmd() *cobra.Command {
	return &cobra.Command{
		Use: "cpu -- CMD ARG…", Hidden: true, Short: "run CMD and count what the machine's CPUs did meanwhile",
		Args: cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			spent, err := bench.WithCPU(cmd.Context(), args)
			return errors.Join(json.NewEncoder(a.Out).Encode(spent), err)
		},
	}
}

// benchPingCmd is the hidden command that an arm runs for round trips.
func (a *app) benchPingCmd() *cobra.Command {
	var run, warm time.Duration
	c := &cobra.Command{
		Use: "ping HOST:PORT", Hidden: true, Short: "round trips to berth bench net --serve",
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			p, err := bench.Ping(cmd.Context(), args[0], run, warm)
			if cmd.Context().Err() != nil {
				return cmd.Context().Err()
			}
			if err != nil {
				p.Error = strings.TrimSpace(err.Error())
			}
			return json.NewEncoder(a.Out).Encode(p)
		},
	}
	c.Flags().DurationVar(&run, "run", time.Second, "")
	c.Flags().DurationVar(&warm, "warm", 0, "")
	return c
}
