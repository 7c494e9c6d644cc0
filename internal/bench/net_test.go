package bench

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"berth/internal/bench/bed"
	"berth/internal/bench/side"
	"berth/internal/bench/stat"
	"berth/internal/bench/wire"
	"berth/internal/sys/refuse"
)

// fakeNet is a network that needs no time: an arm that is slow times as slow as the host, with some noise.
func fakeNet(seed uint64, slow float64) side.Arm {
	r := rand.New(rand.NewPCG(seed, 0))
	return func(_ context.Context, argv []string) ([]byte, error) {
		noise := slow * math.Exp(.02*r.NormFloat64())
		switch {
		case slices.Contains(argv, "--version"):
			return []byte("iperf 3.12 (cJSON 1.7.15)\nLinux somewhere\n"), nil
		case argv[2] == "ping":
			return json.Marshal(wire.Pinged{Trips: int64(50000 / noise), P50: 18 * noise, P99: 40 * noise, RunMillis: 1000})
		}
		doc := fmt.Sprintf(`{"intervals": [{"sum": {"bytes": %f}}], "end": {"sum_sent": {"retransmits": 3},`+
			`"sum_received": {"bits_per_second": %f, "seconds": 1}, "sender_tcp_congestion": "cubic"}}`, 2e9, 9.4e9/noise)
		return json.Marshal(wire.Spent{CPU: 0.8 * noise, Stdout: doc})
	}
}

func fakeArms() []wire.NetArm {
	return []wire.NetArm{
		{Name: "host", Run: fakeNet(1, 1), Peer: "192.0.2.9"},
		{Name: "bridge", Run: fakeNet(2, 1.25), Peer: "192.0.2.9", Node: map[string]string{"name": "b"}},
		{Name: "sriov", Run: fakeNet(3, 1), Peer: "192.0.2.9", Node: map[string]string{"name": "s"}},
	}
}

// fakeLab has networks that need no time.
func fakeLab(arms []wire.NetArm) bed.Lab {
	return bed.Lab{Self: "berth", Network: func(context.Context, *wire.NetOptions, string, []string) ([]wire.NetArm, func(), error) {
		return arms, func() {}, nil
	}}
}

func needIperf(t *testing.T) {
	t.Helper()
	if err := wire.HasIperf(); err != nil {
		t.Skip(err)
	}
}

func TestNet(t *testing.T) {
	needIperf(t)
	o := bed.Options{Names: []string{"net"}, Quick: true, Pairs: 12, Seed: 4, Peer: "192.0.2.9"}
	s, err := Run(t.Context(), o, fakeLab(fakeArms()), "", nil)
	if err != nil {
		t.Fatal(err)
	}
	e := s.Experiments[0]
	if s.Partial || len(e.Trials) != 3*4*13 || len(e.Rows) != 3 || s.Tools[0].Version != "iperf 3.12" || e.Design.RunMillis != 1000 {
		t.Fatalf("partial %v, %d trials, %d rows, %+v, %+v", s.Partial, len(e.Trials), len(e.Rows), s.Tools, e.Design)
	}
	for _, row := range e.Rows {
		for _, c := range row.Compared {
			want := 20.0 // of throughput
			if c.Measure != "bits_per_second" {
				want = 25
			}
			p := c.Penalty
			switch {
			case c.Arm != "bridge" && p.Verdict != stat.Equivalent:
				t.Errorf("%s, %s, %s: %+v", row.Name, c.Arm, c.Measure, p)
			case c.Arm == "bridge" && (p.Verdict != stat.Worse || math.Abs(p.PenaltyPct-want) > 3 || p.CI95Pct[0] > p.PenaltyPct || p.CI95Pct[1] < p.PenaltyPct):
				t.Errorf("%s, %s: %+v", row.Name, c.Measure, p)
			}
		}
		if len(row.Compared) != 3*2 {
			t.Errorf("%s: %d comparisons", row.Name, len(row.Compared))
		}
	}
}

func TestNetInterrupted(t *testing.T) {
	needIperf(t)
	for _, c := range []struct {
		after int // calls of the bridge arm: reach, version, and three of the warm-up round
		kept  bool
	}{{14, true}, {4, false}, {0, false}} {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		arms, calls := fakeArms(), 0
		bridge := arms[1].Run
		arms[1].Run = func(ctx context.Context, argv []string) ([]byte, error) {
			if calls++; calls > c.after {
				cancel()
				return nil, ctx.Err()
			}
			return bridge(ctx, argv)
		}
		s, err := Run(ctx, bed.Options{Names: []string{"net"}, Quick: true, Seed: 1}, fakeLab(arms), "", nil)
		if !errors.Is(err, context.Canceled) || (s != nil) != c.kept || s != nil && !s.Partial {
			t.Errorf("after %d calls: %v, study %v", c.after, err, s)
		}
	}
}

func TestNetRefusals(t *testing.T) {
	t.Parallel()
	needIperf(t)
	good := fakeNet(1, 1)
	with := func(word string, out string, err error) []wire.NetArm {
		arms := fakeArms()
		arms[1].Run = func(ctx context.Context, argv []string) ([]byte, error) {
			if slices.Contains(argv, word) {
				return []byte(out), err
			}
			return good(ctx, argv)
		}
		return arms
	}
	for _, c := range []struct {
		name string
		o    bed.Options
		arms []wire.NetArm
		kind refuse.Kind
		says string
	}{
		{"no iperf3", bed.Options{}, with("--version", "", errors.New("no such file")), refuse.Cannot, "apt-get install iperf3"},
		{"two versions", bed.Options{}, with("--version", "iperf 3.9 (cJSON)", nil), refuse.Cannot, "do not have the same iperf3"},
		{
			"silent",
			bed.Options{Peer: "192.0.2.9"},
			with("ping", `{"error":"i/o timeout"}`, nil), refuse.Cannot,
			"the peer 192.0.2.9 does not answer a node of mode bridge: i/o timeout; run berth bench net --serve on it",
		},
		{"no iperf3 there", bed.Options{}, with("cpu", `{"stdout":"{\"error\":\"unable to connect to server: refused\"}"}`, nil), refuse.Cannot, "does not answer"},
		{"nonsense", bed.Options{}, with("ping", `{}`, nil), 1, "make no sense"},
		{"run", bed.Options{Run: 300 * time.Millisecond}, fakeArms(), refuse.Invalid, "whole seconds"},
		{"warm", bed.Options{Run: time.Second, Warm: 2 * time.Minute}, fakeArms(), refuse.Invalid, "whole seconds"},
		{"port", bed.Options{Port: 65535}, fakeArms(), refuse.Invalid, "between 1 and 65534"},
		{"margin", bed.Options{MarginPct: -1}, fakeArms(), refuse.Invalid, "between 0 and 100"},
	} {
		t.Run(c.name, func(t *testing.T) {
			c.o.Names, c.o.Quick = []string{"net"}, true
			_, err := Run(t.Context(), c.o, fakeLab(c.arms), "", nil)
			if refuse.KindOf(err) != c.kind || !strings.Contains(err.Error(), c.says) {
				t.Errorf("exit %d: %v", refuse.KindOf(err), err)
			}
		})
	}
}
