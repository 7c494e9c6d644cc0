package bench

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"berth/internal/refuse"
	"berth/internal/vnode"
)

// madeUp is a report of made-up trials: a disk of 200 MB/s with weights that hold, a rate that three competitors spoil,
// and a reader that waits ten times as long beside unprotected writers.
func madeUp(rounds int) *Isolation {
	r := &Isolation{
		Format: IsolationFormat, Quick: true, Rounds: 6, MarginPct: 10, RunMillis: 800, Warm: 300, Seed: 7, Fio: "fio-3.33", Engine: vnode.BFQ,
		Machine: Machine{Kernel: "6.1.0", Cores: 2, Disk: Disk{Device: "sdb", Scheduler: "none", FileSystem: "ext4", Mount: "/srv"}},
		Target:  Target{Kind: "file", Path: "/srv/x", Size: 256 << 20},
		Started: time.Unix(0, 0).UTC(), Ended: time.Unix(300, 0).UTC(),
	}
	random := rand.New(rand.NewPCG(1, 2))
	noisy := func(v float64) float64 { return v * math.Exp(.01*random.NormFloat64()) }
	add := func(p Part, round int, row, arm string, jobs ...JobMeasured) {
		r.Trials = append(r.Trials, IsolationTrial{Part: p, Head: Head{Row: row, Round: round, Arm: arm}, IsolationMeasured: &IsolationMeasured{jobs}})
	}
	for round := range rounds + 1 { // the first does not count
		for _, row := range rowsOf(CostPart, true) {
			for _, arm := range []string{hostArm, nodeArm, nullArm} {
				add(CostPart, round, row.name, arm, JobMeasured{Bandwidth: noisy(200e6)})
			}
		}
		for _, row := range rowsOf(ThrottlePart, true) {
			got, jobs := noisy(float64(row.rate)), []JobMeasured(nil)
			if row.count == 3 {
				got *= .7
			}
			jobs = append(jobs, JobMeasured{Bandwidth: got})
			for range row.count {
				jobs = append(jobs, JobMeasured{Bandwidth: 50e6})
			}
			add(ThrottlePart, round, row.name, nodeArm, jobs...)
		}
		for _, row := range rowsOf(WeightPart, true) {
			var jobs []JobMeasured
			for _, percent := range row.split {
				jobs = append(jobs, JobMeasured{Bandwidth: noisy(2e6 * float64(percent) * (1 - .02*float64(len(row.split)-1)))})
			}
			add(WeightPart, round, row.name, nodeArm, jobs...)
		}
		for arm, p99 := range map[string]float64{aloneArm: 3000, unprotectedArm: 30000, classesArm: 6000, ratesArm: 3300} {
			jobs := []JobMeasured{{IOPS: 450, LatP50: p99 / 3, LatP99: p99 * (1 + .01*float64(round%3))}}
			if arm != aloneArm {
				jobs = append(jobs, JobMeasured{Bandwidth: 20e6})
			}
			add(LatencyPart, round, "reader", arm, jobs...)
		}
	}
	r.analyse()
	return r
}

func TestIsolationText(t *testing.T) {
	r := madeUp(6)
	r.LeftOut = []LeftOut{{WeightPart, "io.data.weight 100: nothing shares disk sdb out by weight", "add engine: bfq"}}
	var b bytes.Buffer
	if err := r.Text(&b); err != nil {
		t.Fatal(err)
	}
	for line := range strings.SplitSeq(b.String(), "\n") {
		if len([]rune(line)) > 80 {
			t.Errorf("wider than 80 columns: %q", line)
		}
	}
	golden := filepath.Join("testdata", "isolation.txt")
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

func TestIsolationVerdicts(t *testing.T) {
	r := madeUp(6)
	for _, c := range r.Cost {
		if c.Penalty.Verdict != Equivalent || c.NullComp.Verdict != Equivalent {
			t.Errorf("%s: %+v %+v", c.Name, c.Penalty, c.NullComp)
		}
	}
	for _, row := range r.Throttle {
		want := map[int]Verdict{0: Equivalent, 3: Worse}[row.Competitors]
		if row.Short.Verdict != want {
			t.Errorf("%s: %s, want %s", row.Name, row.Short.Verdict, want)
		}
	}
	for _, row := range r.Weights {
		if row.Holds != Equivalent {
			t.Errorf("%s: %s: %+v", row.Name, row.Holds, row.Shares)
		}
		if n := len(row.Shares); n > 1 && math.Abs(row.Loss.PenaltyPct-2*float64(n-1)) > 1 {
			t.Errorf("%s: %.2f %% lost, want about %d", row.Name, row.Loss.PenaltyPct, 2*(n-1))
		}
	}
	if p := r.Latency.Arms[3].Worth.Removed; p == nil || math.Abs(p.Pct-98.9) > .5 {
		t.Errorf("removed: %+v", p)
	}
	if longer := r.Latency.Arms[1].Longer; math.Abs(longer.PenaltyPct-900) > 1 || longer.Verdict != Worse {
		t.Errorf("unprotected: %+v", longer)
	}
	if few := madeUp(2); few.Cost[0].Penalty.CI95Pct != nil || few.Weights[1].Holds != Undecided || few.Latency.Arms[3].Worth.Removed != nil {
		t.Error("two rounds have no interval")
	}
}

// The study has the figures of the report, whatever form they are shown in.
func TestIsolationStudy(t *testing.T) {
	r := madeUp(6)
	r.LeftOut = []LeftOut{{WeightPart, "nothing shares the disk", "add engine: bfq"}}
	s := r.Study()
	var names []string
	for _, e := range s.Experiments {
		names = append(names, e.Name)
	}
	want := "isolation-cost, isolation-rates, isolation-weights, isolation-shares-q16, isolation-latency, isolation-c"
	if got := strings.Join(names, ", "); got != want {
		t.Fatalf("experiments %s, want %s", got, want)
	}
	same := func(experiment, row, arm string, median float64, c *Comparison) {
		t.Helper()
		e := s.experiment(experiment)
		for _, r := range e.Rows {
			if r.Name != row {
				continue
			}
			for _, a := range r.Arms {
				if got := a.Values[e.Measures[0].Name]; a.Arm == arm && got != median {
					t.Errorf("%s, %s, %s: median %v, want %v", experiment, row, arm, got, median)
				}
			}
			for _, got := range r.Compared {
				if got.Arm != arm {
					continue
				}
				if d := cmp.Diff(c, got.Penalty, cmpopts.EquateApprox(1e-9, 1e-9)); d != "" || got.Corrected != "" {
					t.Errorf("%s, %s, %s: %s", experiment, row, arm, d)
				}
				return
			}
		}
		t.Errorf("%s has no %s compared in %s", experiment, arm, row)
	}
	for _, c := range r.Cost {
		same("isolation-cost", c.Name, nodeArm, c.Node, c.Penalty)
	}
	for _, b := range r.Throttle {
		same("isolation-rates", b.Name, nodeArm, b.Achieved, b.Short)
	}
	for _, w := range r.Weights {
		if len(w.Shares) > 1 {
			same("isolation-weights", w.Name, nodeArm, w.Total, w.Loss)
		}
	}
	for _, a := range r.Latency.Arms[1:] {
		same("isolation-latency", "reader", a.Arm, a.P99, a.Longer)
	}
	for i := range r.Trials { // one trial in six is far off: more than a tenth of what was measured
		if tr := &r.Trials[i]; tr.Part == ThrottlePart && tr.Row == "10 MB/s +0" && tr.Round == 3 {
			tr.Jobs[0].Bandwidth *= 3
		}
	}
	if flags := r.Study().experiment("isolation-rates").Rows[0].Flags; !slices.Contains(flags, Disturbed) {
		t.Errorf("an outlier in six trials: %v", flags)
	}
	shares := s.experiment("isolation-shares-q16")
	if len(shares.Rows) != 2+3+4 || math.Abs(shares.Rows[2].Arms[1].Values["share"]-50) > 1 || !strings.Contains(shares.Notes[2], "50:25:25 q16: got") {
		t.Errorf("shares %+v, notes %q", shares.Rows, shares.Notes)
	}
	if why := s.experiment("isolation-c").Skipped; why != "nothing shares the disk (add engine: bfq)" {
		t.Errorf("left out: %q", why)
	}
}

// fakeNodes are nodes that need no disk: one with a rate gets it, others 100 MB/s; one with a weight as many times 100 kB/s.
type fakeNodes struct {
	mu    sync.Mutex
	alive map[string]*vnode.Node
	made  int
	ran   func()                    // called with each command
	can   func(n *vnode.Node) error // refuses nodes
}

func (f *fakeNodes) host() NodeHost {
	return NodeHost{
		Host: func(_ context.Context, argv []string) ([]byte, error) { return fioSaid(argv, 100e6) },
		Node: func(_ context.Context, n *vnode.Node) (Arm, func(), error) {
			if f.can != nil {
				if err := f.can(n); err != nil {
					return nil, nil, err
				}
			}
			f.mu.Lock()
			defer f.mu.Unlock()
			f.alive[n.Name] = n
			f.made++
			run := func(ctx context.Context, argv []string) ([]byte, error) {
				if f.ran != nil {
					f.ran()
				}
				if err := ctx.Err(); err != nil {
					return nil, err
				}
				f.mu.Lock()
				defer f.mu.Unlock()
				io, bytes := n.IO[0], 100e6
				switch {
				case io.Read.Rate > 0:
					bytes = float64(io.Read.Rate)
				case io.Weight > 0:
					bytes = 1e5 * float64(io.Weight)
				}
				return fioSaid(argv, bytes)
			}
			return run, func() { f.mu.Lock(); delete(f.alive, n.Name); f.mu.Unlock() }, nil
		},
		Set: func(_ context.Context, name, key, value string) error {
			f.mu.Lock()
			defer f.mu.Unlock()
			n := f.alive[name]
			if n == nil {
				return fmt.Errorf("no node %s", name)
			}
			var err error
			switch key {
			case "io.data.read.rate":
				n.IO[0].Read.Rate, err = vnode.ParseRate(value)
			case "io.data.weight":
				n.IO[0].Weight, err = strconv.Atoi(value)
			case "io.data.write.rate":
				if value != "max" {
					_, err = vnode.ParseRate(value)
				}
			default:
				err = errors.New("no such key")
			}
			return err
		},
	}
}

func fioSaid(argv []string, bytes float64) ([]byte, error) {
	if argv[len(argv)-1] == "--version" {
		return []byte("fio-3.33\n"), nil
	}
	return fmt.Appendf(nil, `{"jobs": [{"error": 0, "mixed": {"iops": %f, "bw_bytes": %f, "total_ios": 100,
		"clat_ns": {"percentile": {"50.000000": 1000000, "99.000000": 2000000}}}}]}`, bytes/65536, bytes), nil
}

func TestIsolationRun(t *testing.T) {
	f := &fakeNodes{alive: map[string]*vnode.Node{}}
	dir := onDisk(t)
	r, err := RunIsolation(t.Context(), IsolationOptions{Dir: dir, Size: 64 << 20, Quick: true, Engine: vnode.BFQ}, f.host(), nil)
	if err != nil {
		t.Fatal(err)
	}
	wantEmpty(t, dir)
	if len(f.alive) > 0 || f.made != 4+4+4+8 {
		t.Errorf("%d nodes made, left: %v", f.made, f.alive)
	}
	for _, row := range r.Throttle {
		if math.Abs(row.Achieved-float64(row.Asked)) > 1 || row.Short.Verdict != Equivalent || row.Others != 100e6*float64(row.Competitors) {
			t.Errorf("throttle %+v", row)
		}
	}
	for _, row := range r.Weights {
		if row.Holds != Equivalent {
			t.Errorf("weights %+v", row)
		}
	}
	if len(r.Cost) != 4 || len(r.Latency.Arms) != 4 || r.Partial || len(r.LeftOut) > 0 {
		t.Errorf("report %+v", r)
	}
}

func TestIsolationLeavesOut(t *testing.T) {
	f := &fakeNodes{alive: map[string]*vnode.Node{}}
	f.can = func(n *vnode.Node) error {
		if n.IO[0].Weight > 0 {
			return refuse.Cannotf("add an engine", "nothing shares the disk by weight")
		}
		return nil
	}
	o := IsolationOptions{Dir: onDisk(t), Size: 64 << 20, Quick: true, Parts: []Part{WeightPart, ThrottlePart}}
	r, err := RunIsolation(t.Context(), o, f.host(), nil)
	want := []LeftOut{{WeightPart, "nothing shares the disk by weight", "add an engine"}}
	if err != nil || cmp.Diff(want, r.LeftOut) != "" || r.Weights != nil || r.Partial {
		t.Errorf("%v; left out %+v", err, r.LeftOut)
	}
	o.Parts = o.Parts[:1]
	if _, err := RunIsolation(t.Context(), o, f.host(), nil); refuse.KindOf(err) != refuse.Cannot {
		t.Errorf("nothing can be measured: %v", err)
	}
	if len(f.alive) > 0 {
		t.Errorf("left: %v", f.alive)
	}
}

func TestIsolationInterrupted(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	f := &fakeNodes{alive: map[string]*vnode.Node{}}
	var n int
	var mu sync.Mutex
	f.ran = func() {
		mu.Lock()
		defer mu.Unlock()
		if n++; n == 60 {
			cancel()
		}
	}
	dir := onDisk(t)
	r, err := RunIsolation(ctx, IsolationOptions{Dir: dir, Size: 64 << 20, Quick: true, Parts: []Part{ThrottlePart}}, f.host(), nil)
	if !errors.Is(err, context.Canceled) || r == nil || !r.Partial || len(r.Throttle) == 0 {
		t.Errorf("%v, %+v", err, r)
	}
	wantEmpty(t, dir)
	if len(f.alive) > 0 {
		t.Errorf("left: %v", f.alive)
	}
}

func TestIsolationOptions(t *testing.T) {
	for name, o := range map[string]IsolationOptions{
		"nothing":      {},
		"both":         {Dir: "/x", Device: "/dev/x"},
		"part":         {Dir: "/x", Parts: []Part{"e"}},
		"engine":       {Dir: "/x", Engine: "cfq"},
		"model":        {Dir: "/x", Engine: vnode.BFQ, Model: "rbps=1"},
		"destroy":      {Dir: "/x", DestroyData: true},
		"small":        {Dir: "/x", Size: 1 << 20},
		"margin":       {Dir: "/x", MarginPct: 100},
		"rounds":       {Dir: "/x", Rounds: -1},
		"short trials": {Dir: "/x", Run: time.Microsecond},
	} {
		if err := o.complete(); refuse.KindOf(err) != refuse.Invalid {
			t.Errorf("%s: %v", name, err)
		}
	}
}
