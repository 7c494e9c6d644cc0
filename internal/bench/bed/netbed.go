package bed

import (
	"context"
	"math"
	"strconv"
	"time"

	"berth/internal/bench/result"
	"berth/internal/bench/stat"
	"berth/internal/bench/wire"
)

// makeNetBed makes a node for each network, and a peer where none is given.
func makeNetBed(ctx context.Context, b *Bed, o *Options, lab Lab, streams int, window string) error {
	if err := wire.HasIperf(); err != nil { // before a peer is made, which needs it too
		return err
	}
	n := &wire.NetOptions{Self: lab.Self, Port: o.Port, OwnPeer: o.Peer == "", Streams: streams, Window: window}
	if err := n.Complete(); err != nil {
		return err
	}
	arms, remove, err := lab.Network(ctx, n, o.Peer, o.Networks)
	if err != nil {
		return err
	}
	b.undo = append(b.undo, func() error { remove(); return nil })
	for i, a := range arms {
		s := Side{Name: a.Name, Title: "host", Run: a.Run}
		if a.Node != nil {
			s.Title, s.Node = "node, "+a.Name, a.Node
		}
		if err := b.AddArm(s); err != nil {
			return err
		}
		if err := n.Reach(ctx, a); err != nil {
			return err
		}
		b.Arms[i].peer = a.Peer
	}
	b.Gone = func() error { return n.Reach(ctx, arms[0]) }
	b.WithNull()
	for _, direction := range []string{wire.ToPeer, wire.FromPeer} {
		r := result.Row{Name: direction, Command: n.StreamCommand(direction, arms[0].Peer, 20*time.Second, 3*time.Second)}
		r.Published = netFigures(streams)
		b.Rows = append(b.Rows, Row{Row: r, Job: streamRun{n, direction}})
	}
	if streams == 1 { // round trips do not know of streams
		b.Rows = append(b.Rows, Row{
			Row: result.Row{Name: wire.RoundTrip, Command: []string{"berth", "bench", "ping", arms[0].Peer + ":" + strconv.Itoa(n.Port+1)}},
			Job: pingRun{n},
		})
	}
	b.Notes = netBedNotes(n)
	return nil
}

// netFigures are what was published: equal to what a wire carries. As here they are the receiver's (the sender's were 9.41 Gbit/s both).
func netFigures(streams int) []result.Figure {
	if streams == 1 {
		return []result.Figure{{
			Measure: "bits_per_second", Host: 9.40e9, Node: 9.43e9, PenaltyPct: stat.Penalty(math.Log(9.43 / 9.40)), Arm: "sriov",
			What: "LXC with SR-IOV, Intel 82599ES 10 GbE, 2015, as received",
		}}
	}
	return nil // wire speed of 1 GbE, printed as a plot
}

func netBedNotes(n *wire.NetOptions) []string {
	notes := []string{"speed is TCP payload; what a wire carries is about 5 % more at an MTU of 1500 bytes"}
	if n.OwnPeer {
		return append(notes, "the peer is a node on this machine: no wire was measured. Mode sriov takes --peer and --network",
			"CPU time is that of all CPUs of this machine, so both ends of each stream are in it, and whatever else ran")
	}
	return append(notes, "CPU time is that of all CPUs of this machine, not of the peer's, and whatever else ran is in it")
}

// streamRun is a row of TCP streams in one direction, CPU time counted beside them.
type streamRun struct {
	o         *wire.NetOptions
	direction string
}

func (s streamRun) Measure(ctx context.Context, a Arm, run, warm time.Duration) (map[string]float64, error) {
	ctx, cancel := context.WithTimeout(ctx, run+warm+time.Minute)
	defer cancel()
	return s.o.Stream(ctx, wire.NetArm{Name: a.Name, Run: a.Run, Peer: a.peer}, s.direction, run, warm)
}

// pingRun is the row of round trips.
type pingRun struct{ o *wire.NetOptions }

func (p pingRun) Measure(ctx context.Context, a Arm, run, warm time.Duration) (map[string]float64, error) {
	run = min(run, 20*time.Second) // of those there are tens of thousands a second
	ctx, cancel := context.WithTimeout(ctx, run+warm+time.Minute)
	defer cancel()
	m, err := wire.RoundTrips(ctx, wire.NetArm{Name: a.Name, Run: a.Run, Peer: a.peer}, p.o, run, warm)
	if err != nil {
		return nil, err
	}
	return map[string]float64{"p50_us": m.P50, "p99_us": m.P99}, nil
}
