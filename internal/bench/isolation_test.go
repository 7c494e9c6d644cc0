package bench

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"berth/internal/bench/bed"
	"berth/internal/bench/result"
	"berth/internal/bench/side"
	"berth/internal/bench/stat"
	"berth/internal/spec/vnode"
	"berth/internal/sys/refuse"
)

// fakeNodes are nodes that need no disk: one with a rate gets it, others 100 MB/s; one with a weight as many times 100 kB/s; one
// of class storage waits a third of the time.
type fakeNodes struct {
	mu    sync.Mutex
	alive map[string]*vnode.Node
	made  int
	noise *rand.Rand
	ran   func()                    // called with each command
	can   func(n *vnode.Node) error // refuses nodes
}

func newFakeNodes() *fakeNodes {
	return &fakeNodes{alive: map[string]*vnode.Node{}, noise: rand.New(rand.NewPCG(1, 2))}
}

func (f *fakeNodes) lab() bed.Lab {
	return bed.Lab{
		Node: func(_ context.Context, n *vnode.Node) (side.Arm, func(), error) {
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
				bytes, wait := 100e6, 3000.
				if io := n.IO[0]; io.Read.Rate > 0 {
					bytes = float64(io.Read.Rate)
				} else if io.Weight > 0 {
					bytes = 1e5 * float64(io.Weight)
				}
				if n.Class == vnode.Storage {
					wait = 1000
				}
				noise := math.Exp(.01 * f.noise.NormFloat64())
				return fioSaid(argv, bytes*noise, wait*noise)
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

func fioSaid(argv []string, bytes, micros float64) ([]byte, error) {
	if argv[len(argv)-1] == "--version" {
		return []byte("fio-3.33\n"), nil
	}
	return fmt.Appendf(nil, `{"jobs": [{"error": 0, "mixed": {"iops": %f, "bw_bytes": %f, "total_ios": 100,
		"clat_ns": {"percentile": {"50.000000": %f, "99.000000": %f}}}}]}`, bytes/65536, bytes, 500*micros, 1000*micros), nil
}

// isolated measures parts with nodes that need no disk. Part a, which runs on the host too, is not among them.
func isolated(ctx context.Context, t *testing.T, f *fakeNodes, parts ...bed.Part) (*result.Study, bed.Options, error) {
	t.Helper()
	names, err := bed.PartNames(parts)
	if err != nil {
		t.Fatal(err)
	}
	o := bed.Options{Names: names, Dirs: []string{onDisk(t)}, Size: 64 << 20, Quick: true, Engine: vnode.BFQ, Seed: 1}
	s, err := Run(ctx, o, f.lab(), "", nil)
	wantEmpty(t, o.Dirs[0])
	if len(f.alive) > 0 {
		t.Errorf("left: %v", f.alive)
	}
	return s, o, err
}

func TestIsolation(t *testing.T) {
	t.Parallel()
	f := newFakeNodes()
	s, _, err := isolated(t.Context(), t, f, bed.ThrottlePart, bed.WeightPart, bed.LatencyPart)
	if err != nil {
		t.Fatal(err)
	}
	if f.made != 4+4+8 || s.Partial || !s.OneByOne || len(s.Experiments) != 3 {
		t.Errorf("%d nodes made, partial %v, %d experiments", f.made, s.Partial, len(s.Experiments))
	}
	for i := range s.Experiment("isolation-rates").Rows {
		r := &s.Experiment("isolation-rates").Rows[i]
		asked, got, c := r.Asked["bytes_per_second"], r.Arms[1].Values, compared(t, r, result.Node)
		competitors, _ := strconv.Atoi(r.Name[len(r.Name)-1:])
		if math.Abs(got["bytes_per_second"]/asked-1) > .03 || c.Verdict != stat.Equivalent || math.Abs(got["others_bytes_per_second"]/1e8-float64(competitors)) > .1 {
			t.Errorf("%s: %v of %v, %+v", r.Name, got, asked, c)
		}
		if len(r.Flags) > 0 || r.Arms[0].Values["bytes_per_second"] != asked {
			t.Errorf("%s: %v, %+v", r.Name, r.Flags, r.Arms)
		}
	}
	weights := s.Experiment("isolation-weights")
	for i := range weights.Rows {
		r := &weights.Rows[i]
		split := strings.Split(strings.Fields(r.Name)[0], ":")
		for j, asked := range split {
			want, _ := strconv.ParseFloat(asked, 64)
			if got := r.Arms[1].Values[bed.ShareOf(j)]; math.Abs(got-want) > 1 {
				t.Errorf("%s: node %d got %v %%", r.Name, j+1, got)
			}
		}
		if c := compared(t, r, result.Node); c.Verdict != stat.Equivalent { // all together get what one with the whole weight gets
			t.Errorf("%s: %+v", r.Name, c)
		}
	}
	if notes := strings.Join(weights.Notes, "\n"); strings.Count(notes, "each is shown to lie within 5 points") != 3 || !strings.Contains(notes, "switched to bfq") {
		t.Errorf("notes %q", notes)
	}
	latency := s.Experiment("isolation-latency")
	if c := compared(t, &latency.Rows[0], bed.ClassesArm); c.Verdict != stat.Better || math.Abs(c.PenaltyPct+66.7) > 3 {
		t.Errorf("classes: %+v", c)
	}
	// The nodes run at once, so which of them gets which noise is not told.
	about := `: the p99 is 6[4-9] % \(`
	if notes := strings.Join(latency.Notes, "\n"); !regexp.MustCompile("classes"+about).MatchString(notes) || !regexp.MustCompile("rates"+about).MatchString(notes) {
		t.Errorf("notes %q", notes)
	}
}

func TestIsolationLeavesOut(t *testing.T) {
	t.Parallel()
	f := newFakeNodes()
	f.can = func(n *vnode.Node) error {
		if n.IO[0].Weight > 0 {
			return refuse.Cannotf("add an engine", "nothing shares the disk by weight")
		}
		return nil
	}
	s, _, err := isolated(t.Context(), t, f, bed.WeightPart, bed.ThrottlePart)
	if err != nil || s.Partial || !strings.Contains(s.Experiment("isolation-weights").Skipped, "nothing shares the disk") || len(s.Experiment("isolation-rates").Rows) == 0 {
		t.Errorf("%v; %+v", err, s)
	}
	if _, _, err := isolated(t.Context(), t, f, bed.WeightPart); refuse.KindOf(err) != refuse.Cannot {
		t.Errorf("nothing can be measured: %v", err)
	}
}

func TestIsolationInterrupted(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	f := newFakeNodes()
	var n int
	var mu sync.Mutex
	f.ran = func() {
		mu.Lock()
		defer mu.Unlock()
		if n++; n == 60 {
			cancel()
		}
	}
	s, _, err := isolated(ctx, t, f, bed.ThrottlePart)
	if !errors.Is(err, context.Canceled) || s == nil || !s.Partial || len(s.Experiments[0].Rows) == 0 {
		t.Errorf("%v, %+v", err, s)
	}
}

func TestPartNames(t *testing.T) {
	if all, err := bed.PartNames(nil); err != nil || len(all) != 4 || !slices.Contains(all, "isolation-cost") {
		t.Errorf("%q, %v", all, err)
	}
	if _, err := bed.PartNames([]bed.Part{"e"}); refuse.KindOf(err) != refuse.Invalid {
		t.Error(err)
	}
}
