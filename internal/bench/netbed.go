package bench

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strconv"
	"time"
)

// makeNetBed makes a node for each network, and a peer where none is given.
func makeNetBed(ctx context.Context, o *StudyOptions, lab Lab, streams int, window string) (_ *bed, err error) {
	if err := HasIperf(); err != nil { // before a peer is made, which needs it too
		return nil, err
	}
	n := &NetOptions{Self: lab.Self, Port: o.Port, OwnPeer: o.Peer == "", Streams: streams, Window: window}
	if err := n.Complete(); err != nil {
		return nil, err
	}
	arms, remove, err := lab.Network(ctx, n, o.Peer, o.Networks)
	if err != nil {
		return nil, err
	}
	b := &bed{undo: []func() error{func() error { remove(); return nil }}}
	defer func() {
		if err != nil {
			err = errors.Join(err, b.close())
		}
	}()
	for _, a := range arms {
		info := ArmInfo{Name: a.Name, Title: "node, " + a.Name}
		if a.Node == nil {
			info.Title = "host"
		} else if info.Node, err = json.Marshal(a.Node); err != nil {
			return nil, fmt.Errorf("put the node's spec into the report: %w", err)
		}
		if err := n.reach(ctx, a); err != nil {
			return nil, err
		}
		b.arms = append(b.arms, bedArm{ArmInfo: info, run: a.Run, peer: a.Peer})
	}
	b.gone = func() error { return n.reach(ctx, arms[0]) }
	b.withNull()
	for _, direction := range []string{toPeer, fromPeer} {
		r := StudyRow{Name: direction, Command: n.streamCommand(direction, arms[0].Peer, 20*time.Second, 3*time.Second)}
		r.Published = netFigures(streams)
		b.rows = append(b.rows, bedRow{StudyRow: r, job: streamRun{n, direction}})
	}
	if streams == 1 { // round trips do not know of streams
		b.rows = append(b.rows, bedRow{
			StudyRow: StudyRow{Name: roundTrip, Command: []string{"berth", "bench", "ping", arms[0].Peer + ":" + strconv.Itoa(n.Port+1)}},
			job:      pingRun{n},
		})
	}
	b.notes = netBedNotes(n)
	return b, nil
}

// netFigures are what was published: equal to what a wire carries. As here they are the receiver's (the sender's were 9.41 Gbit/s both).
func netFigures(streams int) []Figure {
	if streams == 1 {
		return []Figure{{
			Measure: "bits_per_second", Host: 9.40e9, Node: 9.43e9, PenaltyPct: penalty(math.Log(9.43 / 9.40)), Arm: "sriov",
			What: "LXC with SR-IOV, Intel 82599ES 10 GbE, 2015, as received",
		}}
	}
	return nil // wire speed of 1 GbE, printed as a plot
}

func netBedNotes(n *NetOptions) []string {
	notes := []string{"speed is TCP payload; what a wire carries is about 5 % more at an MTU of 1500 bytes"}
	if n.OwnPeer {
		return append(notes, "the peer is a node on this machine: no wire was measured. Mode sriov takes --peer and --network",
			"CPU time is that of all CPUs of this machine, so both ends of each stream are in it, and whatever else ran")
	}
	return append(notes, "CPU time is that of all CPUs of this machine, not of the peer's, and whatever else ran is in it")
}

// streamRun is a row of TCP streams in one direction, CPU time counted beside them.
type streamRun struct {
	o         *NetOptions
	direction string
}

func (s streamRun) measure(ctx context.Context, a bedArm, run, warm time.Duration) (map[string]float64, error) {
	ctx, cancel := context.WithTimeout(ctx, run+warm+time.Minute)
	defer cancel()
	m, err := s.o.stream(ctx, NetArm{Name: a.Name, Run: a.run, Peer: a.peer}, s.direction, run, warm)
	if err != nil {
		return nil, err
	}
	return map[string]float64{"bits_per_second": m.Bits, "cpu_s_per_gb": m.CPU}, nil
}

// pingRun is the row of round trips.
type pingRun struct{ o *NetOptions }

func (p pingRun) measure(ctx context.Context, a bedArm, run, warm time.Duration) (map[string]float64, error) {
	run = min(run, 20*time.Second) // of those there are tens of thousands a second
	ctx, cancel := context.WithTimeout(ctx, run+warm+time.Minute)
	defer cancel()
	m, err := ping(ctx, NetArm{Name: a.Name, Run: a.run, Peer: a.peer}, p.o, run, warm)
	if err != nil {
		return nil, err
	}
	return map[string]float64{"p50_us": m.P50, "p99_us": m.P99}, nil
}
