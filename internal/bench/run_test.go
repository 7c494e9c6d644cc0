package bench

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"berth/internal/bench/bed"
	"berth/internal/bench/result"
	"berth/internal/bench/side"
	"berth/internal/bench/stat"
	"berth/internal/sys/refuse"
)

// fake is a disk that needs no time: an arm answers with the given IOPS and some noise.
func fake(seed uint64, iops float64) side.Arm { return fakeNoise(seed, iops, .02) }

func fakeNoise(seed uint64, iops, noise float64) side.Arm {
	r := rand.New(rand.NewPCG(seed, 0))
	return func(_ context.Context, argv []string) ([]byte, error) {
		if slices.Contains(argv, "--version") {
			return []byte("fio-3.33\n"), nil
		}
		v := iops * math.Exp(noise*r.NormFloat64())
		d := fmt.Sprintf(`{"iops": %f, "bw_bytes": %f, "total_ios": 1000, "runtime": 300, "lat_ns": {"mean": %f}, "clat_ns": {"percentile": {"99.000000": %f}}}`,
			v, v*4096, 1e9/v, 3e9/v)
		return []byte(`note: something of fio's` + "\n" + `{"jobs": [{"error": 0, "mixed": ` + d + `}]}`), nil
	}
}

func small(t *testing.T) bed.Options {
	t.Helper()
	return bed.Options{Dirs: []string{onDisk(t)}, Size: 1 << 20, Quick: true, Pairs: 12, Seed: 1}
}

// sidesOf are the host, the host again, and a node where there is one.
func sidesOf(host, null, node side.Arm) []bed.Side {
	sides := []bed.Side{{Name: result.Host, Run: host}, {Name: result.Null, Run: null}}
	if node != nil {
		sides = append(sides, bed.Side{Name: result.Node, Run: node, Node: map[string]string{"name": "n1"}})
	}
	return sides
}

// table measures the rows of berth bench disk --quick in arms of the test's own.
func table(ctx context.Context, o bed.Options, sides []bed.Side, progress func(bed.Progress)) (*result.Study, error) {
	return RunJobs(ctx, o, result.About{Name: "disk"}, bed.Rows(true, 2), sides, progress)
}

// compared returns a row's comparison of an arm by the first measure.
func compared(t *testing.T, r *result.Row, arm string) *stat.Comparison {
	t.Helper()
	for _, c := range r.Compared {
		if c.Arm == arm {
			return c.Penalty
		}
	}
	t.Fatalf("%s: %s is not compared: %+v", r.Name, arm, r)
	return nil
}

// onDisk returns a folder of the test's own on a file system with direct I/O.
func onDisk(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	if err := bed.CheckFolder(dir, 1<<20); refuse.KindOf(err) == refuse.Cannot {
		t.Skipf("no disk under the folder for temporary files: %v", err)
	}
	return dir
}

func wantEmpty(t *testing.T, dir string) {
	t.Helper()
	left, err := os.ReadDir(dir)
	if err != nil || len(left) > 0 {
		t.Errorf("left behind: %v %v", left, err)
	}
}

func TestRunJobs(t *testing.T) {
	o := small(t)
	var told []bed.Progress
	s, err := table(t.Context(), o, sidesOf(fake(1, 1000), fake(3, 1000), fake(2, 700)), func(p bed.Progress) { told = append(told, p) })
	if err != nil {
		t.Fatal(err)
	}
	wantEmpty(t, o.Dirs[0])
	e := &s.Experiments[0]
	if s.Partial || e.Design.Pairs != 12 || len(e.Trials) != 4*3*13 || len(e.Rows) != 4 || len(e.Arms[2].Node) == 0 {
		t.Errorf("partial %v, %+v, %d trials, %d rows", s.Partial, e.Design, len(e.Trials), len(e.Rows))
	}
	for i := range e.Rows {
		r := &e.Rows[i]
		if p := compared(t, r, result.Node); p.Verdict != stat.Worse || math.Abs(p.PenaltyPct-30) > 3 || p.CI95Pct[0] > p.PenaltyPct || p.Pairs != 12 {
			t.Errorf("%s: %+v", r.Name, p)
		}
		if p := compared(t, r, result.Null); p.Verdict != stat.Equivalent || r.Arms[0].Trials != 12 {
			t.Errorf("%s: %+v %+v", r.Name, p, r.Arms[0])
		}
	}
	checkBlocks(t, e, 1)
	if last := told[len(told)-1]; last.Total != int64(len(e.Trials)) || last.Done != last.Total-1 {
		t.Errorf("progress ends with %+v", last)
	}
}

func TestSameSeedSameOrder(t *testing.T) {
	var order [2][]string
	for i := range order {
		s, err := table(t.Context(), small(t), sidesOf(fake(1, 1000), fake(3, 1000), nil), nil)
		if err != nil {
			t.Fatal(err)
		}
		for _, tr := range s.Experiments[0].Trials {
			order[i] = append(order[i], tr.Row+tr.Arm)
		}
	}
	if diff := cmp.Diff(order[0], order[1]); diff != "" {
		t.Error(diff)
	}
}

func TestInterrupted(t *testing.T) {
	for _, c := range []struct {
		name  string
		after int // calls of the host arm, the one for the version included
		kept  bool
	}{{"while measuring", 20, true}, {"while warming up", 3, false}, {"at once", 0, false}} {
		t.Run(c.name, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			good, calls := fake(1, 1000), 0
			host := func(ctx context.Context, argv []string) ([]byte, error) {
				if calls++; calls > c.after {
					cancel()
					return nil, ctx.Err()
				}
				return good(ctx, argv)
			}
			o := small(t)
			s, err := table(ctx, o, sidesOf(host, fake(2, 1000), nil), nil)
			if !errors.Is(err, context.Canceled) {
				t.Errorf("error %v", err)
			}
			wantEmpty(t, o.Dirs[0])
			if (s != nil) != c.kept {
				t.Fatalf("study %v", s)
			}
			if s != nil && (!s.Partial || len(s.Experiments[0].Rows) != 4 || len(s.Experiments[0].Rows[0].Arms) == 0) {
				t.Errorf("partial %v, rows %+v", s.Partial, s.Experiments[0].Rows)
			}
		})
	}
}

func TestFailingArm(t *testing.T) {
	good := fake(1, 1000)
	calls := 0
	once := func(ctx context.Context, argv []string) ([]byte, error) {
		if calls++; calls == 12 {
			return nil, errors.New("no such luck")
		}
		return good(ctx, argv)
	}
	s, err := table(t.Context(), small(t), sidesOf(fake(2, 1000), fake(3, 1000), once), nil)
	if err != nil {
		t.Fatal(err)
	}
	flagged := 0
	for i := range s.Experiments[0].Rows {
		r := &s.Experiments[0].Rows[i]
		if slices.Contains(r.Flags, result.TrialError) {
			flagged++
			if a, b := compared(t, r, result.Node).Pairs, compared(t, r, result.Null).Pairs; a != 11 || b != 12 {
				t.Errorf("pairs %d and %d", a, b)
			}
		}
	}
	if flagged != 1 {
		t.Errorf("%d rows flagged", flagged)
	}

	calls = 0
	broken := func(ctx context.Context, argv []string) ([]byte, error) {
		if calls++; calls > 12 {
			return nil, errors.New("the node is gone")
		}
		return good(ctx, argv)
	}
	if s, err = table(t.Context(), small(t), sidesOf(broken, broken, nil), nil); err == nil || s == nil || !s.Partial {
		t.Errorf("an arm that breaks: %v, study %v", err, s)
	}
}

func TestRefusals(t *testing.T) {
	version := func(v string, err error) side.Arm {
		return func(context.Context, []string) ([]byte, error) { return []byte(v), err }
	}
	ok := fake(1, 1)
	dir := onDisk(t)
	in := func(dir string) bed.Options { return bed.Options{Dirs: []string{dir}} }
	for _, c := range []struct {
		name string
		o    bed.Options
		host side.Arm
		kind refuse.Kind
		says string
	}{
		{"no fio", in(dir), version("", &exec.Error{Name: "fio", Err: exec.ErrNotFound}), refuse.Cannot, "apt-get install fio"},
		{"old fio", in(dir), version("fio-2.19", nil), refuse.Cannot, "too old"},
		{"two fios", in(dir), version("fio-3.28", nil), refuse.Cannot, "do not have the same fio"},
		{"no room", bed.Options{Dirs: []string{dir}, Size: 1 << 60}, ok, refuse.Cannot, "free, and measuring takes 1048576TiB"},
		{"no folder", in(filepath.Join(dir, "none")), ok, refuse.NotFound, "there is no folder"},
		{"memory", in("/dev/shm"), ok, refuse.Cannot, "no disk to measure"},
		{"not a device", bed.Options{Devices: []string{dir}}, ok, refuse.Invalid, "not a block device"},
		{"destroy a folder", bed.Options{Dirs: []string{dir}, DestroyData: true}, ok, refuse.Invalid, "goes with --device"},
		{"margin", bed.Options{Dirs: []string{dir}, MarginPct: 100}, ok, refuse.Invalid, "between 0 and 100"},
		{"short trials", bed.Options{Dirs: []string{dir}, Run: time.Microsecond}, ok, refuse.Invalid, "too short"},
		{"engine", bed.Options{Dirs: []string{dir}, Engine: "cfq"}, ok, refuse.Invalid, "no engine"},
		{"model", bed.Options{Dirs: []string{dir}, Engine: "bfq", Model: "rbps=1"}, ok, refuse.Invalid, "for engine iocost"},
	} {
		t.Run(c.name, func(t *testing.T) {
			if c.o.Size == 0 {
				c.o.Size = 1 << 20
			}
			_, err := table(t.Context(), c.o, sidesOf(c.host, ok, nil), nil)
			if refuse.KindOf(err) != c.kind || !strings.Contains(err.Error(), c.says) {
				t.Errorf("%v", err)
			}
			wantEmpty(t, dir)
		})
	}
}
