package bench

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"berth/internal/refuse"
)

// fakeNet is a network that needs no time: an arm that is slow times as slow as the host, with some noise.
func fakeNet(seed uint64, slow float64) Arm {
	r := rand.New(rand.NewPCG(seed, 0))
	return func(_ context.Context, argv []string) ([]byte, error) {
		noise := slow * math.Exp(.02*r.NormFloat64())
		switch {
		case slices.Contains(argv, "--version"):
			return []byte("iperf 3.12 (cJSON 1.7.15)\nLinux somewhere\n"), nil
		case argv[2] == "ping":
			return json.Marshal(Pinged{Trips: int64(50000 / noise), P50: 18 * noise, P99: 40 * noise, RunMillis: 1000})
		}
		doc := fmt.Sprintf(`{"intervals": [{"sum": {"bytes": %f}}], "end": {"sum_sent": {"retransmits": 3},`+
			`"sum_received": {"bits_per_second": %f, "seconds": 1}, "sender_tcp_congestion": "cubic"}}`, 2e9, 9.4e9/noise)
		return json.Marshal(Spent{CPU: 0.8 * noise, Stdout: doc})
	}
}

func fakeArms() []NetArm {
	return []NetArm{
		{Name: "host", Run: fakeNet(1, 1), Peer: "192.0.2.9"},
		{Name: "bridge", Run: fakeNet(2, 1.25), Peer: "192.0.2.9", Node: map[string]string{"name": "b"}},
		{Name: "sriov", Run: fakeNet(3, 1), Peer: "192.0.2.9", Node: map[string]string{"name": "s"}},
	}
}

func TestRunNet(t *testing.T) {
	o := NetOptions{Self: "berth", Quick: true, Pairs: 12, Seed: 4}
	rep, err := RunNet(t.Context(), o, fakeArms(), nil)
	if err != nil {
		t.Fatal(err)
	}
	if rep.Partial || len(rep.Trials) != 3*4*13 || len(rep.Rows) != 3 || rep.Iperf != "iperf 3.12" {
		t.Fatalf("partial %v, %d trials, %d rows, %s", rep.Partial, len(rep.Trials), len(rep.Rows), rep.Iperf)
	}
	for _, row := range rep.Rows {
		for _, of := range measures(row.Name) {
			want := 20.0 // of throughput
			if of.cost {
				want = 25
			}
			slow, same := row.penalty("bridge", of.name), row.penalty("sriov", of.name)
			if slow.Verdict != Worse || math.Abs(slow.PenaltyPct-want) > 3 || slow.CI95Pct[0] > slow.PenaltyPct || slow.CI95Pct[1] < slow.PenaltyPct {
				t.Errorf("%s, %s: %+v", row.Name, of.name, slow)
			}
			if same.Verdict != Equivalent || row.penalty(nullArm, of.name).Verdict != Equivalent {
				t.Errorf("%s, %s: %+v", row.Name, of.name, same)
			}
		}
	}
	var b bytes.Buffer
	if err := rep.JSON(&b); err != nil {
		t.Fatal(err)
	}
	var back NetReport
	if err := json.Unmarshal(b.Bytes(), &back); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(back.Rows, analyseNet(back.Arms, back.Trials, back.MarginPct)); diff != "" {
		t.Errorf("the rows do not follow from the trials: %s", diff)
	}
}

func TestNetText(t *testing.T) {
	for _, own := range []bool{false, true} {
		o := NetOptions{Self: "berth", Quick: true, Pairs: 6, Seed: 4, OwnPeer: own}
		rep, err := RunNet(t.Context(), o, fakeArms(), nil)
		if err != nil {
			t.Fatal(err)
		}
		rep.Machine, rep.Partial = Machine{Kernel: "6.1.0", Cores: 2}, !own
		rep.Rows[2].Flags = []Flag{Disturbed}
		var b bytes.Buffer
		if err := rep.Text(&b); err != nil {
			t.Fatal(err)
		}
		for line := range strings.SplitSeq(b.String(), "\n") {
			if len([]rune(line)) > 80 {
				t.Errorf("wider than 80 columns: %q", line)
			}
		}
		golden := filepath.Join("testdata", fmt.Sprintf("net-own-%v.txt", own))
		if *update {
			if err := os.WriteFile(golden, b.Bytes(), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		want, err := os.ReadFile(golden)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(string(want), b.String()); diff != "" {
			t.Error(diff)
		}
	}
}

func TestNetInterrupted(t *testing.T) {
	for _, c := range []struct {
		after int // calls of the bridge arm: version, reach, and three of the warm-up round
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
		rep, err := RunNet(ctx, NetOptions{Self: "berth", Seed: 1}, arms, nil)
		if !errors.Is(err, context.Canceled) || (rep != nil) != c.kept || rep != nil && !rep.Partial {
			t.Errorf("after %d calls: %v, report %v", c.after, err, rep)
		}
		if rep != nil {
			if err := rep.Text(&bytes.Buffer{}); err != nil {
				t.Error(err)
			}
		}
	}
}

func TestNetRefusals(t *testing.T) {
	good := fakeNet(1, 1)
	with := func(word string, out string, err error) []NetArm {
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
		o    NetOptions
		arms []NetArm
		kind refuse.Kind
		says string
	}{
		{"no iperf3", NetOptions{}, with("--version", "", errors.New("no such file")), refuse.Cannot, "apt-get install iperf3"},
		{"two versions", NetOptions{}, with("--version", "iperf 3.9 (cJSON)", nil), refuse.Cannot, "do not have the same iperf3"},
		{
			"silent",
			NetOptions{},
			with("ping", `{"error":"i/o timeout"}`, nil), refuse.Cannot,
			"the peer 192.0.2.9 does not answer a node of mode bridge: i/o timeout; run berth bench net --serve on it",
		},
		{
			"no iperf3 there",
			NetOptions{},
			with("cpu", `{"stdout":"{\"error\":\"unable to connect to server: refused\"}"}`, nil),
			refuse.Cannot, "does not answer",
		},
		{"nonsense", NetOptions{}, with("ping", `{}`, nil), 1, "make no sense"},
		{"run", NetOptions{Run: 300 * time.Millisecond}, fakeArms(), refuse.Invalid, "whole seconds"},
		{"warm", NetOptions{Warm: 2 * time.Minute}, fakeArms(), refuse.Invalid, "whole seconds"},
		{"port", NetOptions{Port: 65535}, fakeArms(), refuse.Invalid, "between 1 and 65534"},
		{"margin", NetOptions{MarginPct: -1}, fakeArms(), refuse.Invalid, "between 0 and 100"},
	} {
		t.Run(c.name, func(t *testing.T) {
			c.o.Self = "berth"
			_, err := RunNet(t.Context(), c.o, c.arms, nil)
			if refuse.KindOf(err) != c.kind || !strings.Contains(err.Error(), c.says) {
				t.Errorf("exit %d: %v", refuse.KindOf(err), err)
			}
		})
	}
}

func TestStreamCommand(t *testing.T) {
	got := strings.Join((&NetOptions{Port: 5201}).streamCommand(fromPeer, "2001:db8::9", 20*time.Second, 3*time.Second), " ")
	want := "iperf3 --client 2001:db8::9 --port 5201 --json --time 20 --omit 3 --reverse"
	if got != want {
		t.Error(got)
	}
}

// A stream of a real iperf3: the CPU time is set against the warm-up's bytes too, the throughput is not.
func TestParseIperf(t *testing.T) {
	out, err := os.ReadFile(filepath.Join("testdata", "iperf3-reverse.json"))
	if err != nil {
		t.Fatal(err)
	}
	got, err := parseIperf(out, 2.391)
	if err != nil {
		t.Fatal(err)
	}
	got.CPU = math.Round(got.CPU*1e6) / 1e6
	want := &NetMeasured{Bits: 93128179683.953049, CPU: 0.1, Retransmits: 31, Congestion: "bbr", RunMillis: 999}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func FuzzParseIperf(f *testing.F) {
	out, err := os.ReadFile(filepath.Join("testdata", "iperf3-reverse.json"))
	if err != nil {
		f.Fatal(err)
	}
	f.Add(out, 1.0)
	f.Add([]byte(`{"error":"unable to connect"}`), 0.0)
	f.Add([]byte(`{"end":{"sum_received":{"bits_per_second":1,"seconds":1}}}`), 0.0)
	f.Fuzz(func(t *testing.T, out []byte, cpu float64) {
		if m, err := parseIperf(out, cpu); err == nil && (!(m.Bits > 0) || m.CPU < 0 || m.RunMillis < 0) {
			t.Errorf("accepted %+v", m)
		}
	})
}

func TestParseBusy(t *testing.T) {
	got, err := parseBusy("cpu  100 20 30 4000 500 6 7 800 90 10\ncpu0 1 2 3\n")
	if err != nil || math.Abs(got-1.63) > 1e-9 {
		t.Errorf("%v %v", got, err)
	}
	for _, bad := range []string{"", "cpu 1 2 3", "cpu0 1 2 3 4 5 6 7", "cpu a 2 3 4 5 6 7", "intr 1 2 3 4 5 6 7 8"} {
		if _, err := parseBusy(bad); err == nil {
			t.Errorf("accepted %q", bad)
		}
	}
}

func FuzzParseBusy(f *testing.F) {
	f.Add("cpu  100 20 30 4000 500 6 7 800 90 10\n")
	f.Fuzz(func(t *testing.T, stat string) {
		if busy, err := parseBusy(stat); err == nil && !(busy >= 0) {
			t.Errorf("%v", busy)
		}
	})
}

func TestQuantile(t *testing.T) {
	x := make([]time.Duration, 200)
	for i := range x {
		x[i] = time.Duration(i + 1)
	}
	if p50, p99 := quantile(x, .5), quantile(x, .99); p50 != 101 || p99 != 199 {
		t.Errorf("%d %d", p50, p99)
	}
	if quantile(x[:1], .99) != 1 {
		t.Error("of one value")
	}
}
