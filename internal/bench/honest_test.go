package bench

import (
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
)

// Ties at 0 are not broken by rounding: ln(a/b) + ln(b/a) is not 0 in floating point, and which side it falls on is nobody's finding. Swapped
// arms must give the same p-value, and a pair of opposite differences must not count.
func TestTiesAtZero(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 1))
	broken := 0
	for range 200 {
		a, b := 1e3*r.Float64()+1, 1e3*r.Float64()+1
		d := []float64{math.Log(a / b), math.Log(b / a), math.Log(a / b * 1.5), math.Log(b * 2 / a), math.Log(a / b), math.Log(b / a)}
		count(&broken, (d[0]+d[1])/2 != 0)
		zeros := 0
		for _, w := range walsh(d) {
			count(&zeros, w == 0)
		}
		if zeros < 4 { // 0-1, 0-5, 1-4, 4-5
			t.Fatalf("%v: %d means are 0", d, zeros)
		}
		neg := make([]float64, len(d))
		for i, v := range d {
			neg[i] = -v
		}
		if p, q := differs(d), differs(neg); p != q {
			t.Fatalf("p %v, of the arms swapped %v", p, q)
		}
		if above(d, 0) < above([]float64{d[0] + 1e-9, d[1], d[2], d[3], d[4], d[5]}, 0) {
			t.Fatal("a mean above 0 counts less than one at 0")
		}
	}
	if broken == 0 {
		t.Error("no sum of opposite logarithms is off by rounding: the test shows nothing")
	}
	// Six pairs of which three are the other three turned round: nothing is above, nothing below.
	opposite := []float64{math.Log(1.1), math.Log(1 / 1.1), math.Log(1.3), math.Log(1 / 1.3), math.Log(1.7), math.Log(1 / 1.7)}
	if e := estimate(opposite); e.Center != 0 || differs(opposite) != 1 {
		t.Errorf("%+v, p %v", e, differs(opposite))
	}
}

// What could have been decided is told in the unit of the penalty: a time that triples is 200 % more, not 67 % less.
func TestCouldOfATime(t *testing.T) {
	d := []float64{-.5, -.3, .1, .4, .2, -.1, .3}
	speed, wait := judge(d, 5, penalty), judge(d, 5, extra)
	m, _ := decidable(estimate(d))
	if math.Abs(*speed.Could-100*(1-math.Exp(-m))) > 1e-9 || math.Abs(*wait.Could-100*(math.Exp(m)-1)) > 1e-9 || *wait.Could <= *speed.Could {
		t.Errorf("a width of %v: %v %% of speed, %v %% of time", m, *speed.Could, *wait.Could)
	}
}

// Only a disk that is known to turn needs no steady state.
func TestTurns(t *testing.T) {
	for _, c := range []struct {
		disk Disk
		want bool
	}{
		{Disk{Device: "vda", Rotational: "1"}, false}, // virtio says so of whatever it lies on
		{Disk{Device: "loop0", Rotational: "1"}, false},
		{Disk{Device: "sda", Model: "QEMU HARDDISK", Rotational: "1"}, false},
		{Disk{Device: "sda", Model: "VBOX HARDDISK", Rotational: "1"}, false},
		{Disk{Device: "sdb", Model: "ST4000NM0035", Rotational: "1"}, true},
		{Disk{Device: "sdb", Model: "INTEL SSDSC2BB48", Rotational: "0"}, false},
		{Disk{Device: "nvme0n1", Rotational: "0"}, false},
	} {
		b := bed{
			targets: []DiskUsed{{Disk: c.disk}},
			rows:    []bedRow{{job: diskRun{diskJob{Pattern: "randread"}, nil}}, {job: diskRun{diskJob{Pattern: "write", Block: 4096}, nil}}},
		}
		job, needed := b.needsSteady()
		if c.disk.Turns() != c.want || needed == c.want || needed && job.Block != 4096 {
			t.Errorf("%+v: turns %v, a steady state is tried: %v", c.disk, c.disk.Turns(), needed)
		}
	}
}

// What is published stands for what was published.
func TestPublishedAsPrinted(t *testing.T) {
	f := netFigures(1)[0]
	if f.Host != 9.40e9 || f.Node != 9.43e9 || f.Arm != "sriov" || f.PenaltyPct > -.3 || f.PenaltyPct < -.34 {
		t.Errorf("the receiver's figures: %+v", f)
	}
	r := madeUp(6)
	r.LeftOut = []LeftOut{{LatencyPart, "no writers", ""}}
	for _, e := range r.Study().Experiments {
		of := strings.Contains(e.Source, "PDSW 2015")
		if latency := e.Name == "isolation-latency" || e.Name == "isolation-d"; of == latency {
			t.Errorf("%s: source %q", e.Name, e.Source)
		}
	}
	for part, want := range map[Part][]string{
		ThrottlePart: {"10 MB/s +3", "10 MB/s +3 16KiB", "40 MB/s +0 16MiB"}, WeightPart: {"50:50 q64", "50:50 q16 16KiB", "100 q16 16MiB"},
	} {
		var names []string
		for _, row := range rowsOf(part, false) {
			names = append(names, row.name)
		}
		for _, w := range want {
			if !slices.Contains(names, w) {
				t.Errorf("part %s has no row %q: %q", part, w, names)
			}
		}
	}
	argv := reads(16<<20, 4).command(Target{Path: "/x", Size: 1 << 30}, 1e9, 1e8)
	if !slices.Contains(argv, "--rw=randread:16") || !slices.Contains(argv, "--bs=1048576") || !slices.Contains(argv, "--readonly") {
		t.Errorf("an object of 16 MiB: %q", argv)
	}
	if name := isolationAlone(isolationRow{block: 16 << 20, depth: 16}); name != "100 q16 16MiB" {
		t.Errorf("alone: %q", name)
	}
	for _, d := range definitions() { // what a setting says of the engine is what runs
		for _, j := range d.disk {
			engine := "psync"
			if slices.Contains(diskRun{j, []Target{{Path: "/x"}}}.command(1e9, 0), "--ioengine=libaio") {
				engine = "libaio"
			}
			if mentions := strings.Contains(d.Setting, "libaio") || strings.Contains(d.Setting, "psync"); mentions && !strings.Contains(d.Setting, engine) {
				t.Errorf("%s, %s runs with %s; its setting: %q", d.Name, j.Name, engine, d.Setting)
			}
		}
	}
}

// The second estimate: numbers from an independent computation (numpy and scipy.stats.t), and its p-values are its interval.
func TestTotals(t *testing.T) {
	b := blocks{ref: []float64{100, 110, 95, 105, 120, 98, 101, 99}, arm: []float64{97, 108, 30, 104, 118, 99, 97, 100}}
	c := b.judge(5, penalty)
	for name, v := range map[string][2]float64{
		"penalty": {c.Totals.PenaltyPct, 9.05797101449275}, "low 90": {c.Totals.CI90Pct[0], -5.420382986492855}, "high 90": {c.Totals.CI90Pct[1], 24.204703125264913},
		"p": {b.moments().notWithin(logMargin(5)), 0.6914636802609656},
	} {
		if math.Abs(v[0]-v[1]) > 1e-6 {
			t.Errorf("%s: %v, want %v", name, v[0], v[1])
		}
	}
	if c.Verdict == Equivalent || b.tests(5).PEquiv < .05 {
		t.Errorf("a stalled trial in eight: %+v", c)
	}
	r := rand.New(rand.NewPCG(5, 2))
	inside := 0
	for range 500 {
		var x blocks
		for range 6 + r.IntN(10) {
			x.ref, x.arm = append(x.ref, math.Exp(.1*r.NormFloat64())), append(x.arm, math.Exp(.1*r.NormFloat64()+.02))
		}
		m, margin := x.moments(), logMargin(10)
		i := m.ratio(.10)
		in := i != nil && -margin < i.Lo && i.Hi < margin
		count(&inside, in)
		if p := m.notWithin(margin); (p < .05) != in && math.Abs(p-.05) > 1e-9 {
			t.Fatalf("p %v, interval %+v, margin %v", p, i, margin)
		}
	}
	if inside < 50 || inside > 450 {
		t.Errorf("%d of 500 intervals lie inside: the test shows little", inside)
	}
}

// RatioOfTotals lies in its interval, whose coverage is what it says: for noise of both that is independent, shared or skewed.
func TestRatioOfTotals(t *testing.T) {
	const truth, runs = .4, 1000
	r := rand.New(rand.NewPCG(5, 3))
	for _, n := range []int{8, 30} {
		for _, spread := range []struct{ shared, own float64 }{{0, .1}, {.3, .05}, {.5, .3}} {
			missed := 0
			for range runs {
				var x, y []float64
				for range n {
					speed := math.Exp(spread.shared * r.NormFloat64())
					y = append(y, speed*math.Exp(spread.own*r.NormFloat64()))
					x = append(x, truth*speed*math.Exp(spread.own*r.NormFloat64()))
				}
				ratio, ci := RatioOfTotals(x, y)
				if ci == nil || ratio < ci.Lo || ci.Hi < ratio {
					t.Fatalf("%v is not in its interval %+v", ratio, ci)
				}
				count(&missed, truth < ci.Lo || ci.Hi < truth)
			}
			if missed > runs*7/100 {
				t.Errorf("%d pairs, spread %+v: %d of %d intervals miss", n, spread, missed, runs)
			}
		}
	}
	if _, ci := RatioOfTotals([]float64{1, 2}, []float64{2, 4}); ci != nil {
		t.Errorf("an interval of two pairs: %+v", ci)
	}
	if ratio, ci := RatioOfTotals([]float64{1, 2, 1, 2, 1}, make([]float64, 5)); ratio != 0 || ci != nil {
		t.Errorf("nothing to compare with: %v, %+v", ratio, ci)
	}
}
