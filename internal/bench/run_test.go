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

	"berth/internal/refuse"
)

// fake is a disk that needs no time: an arm answers with the given IOPS and some noise.
func fake(seed uint64, iops float64) Arm { return fakeNoise(seed, iops, .02) }

func fakeNoise(seed uint64, iops, noise float64) Arm {
	r := rand.New(rand.NewPCG(seed, 0))
	return func(_ context.Context, argv []string) ([]byte, error) {
		if slices.Contains(argv, "--version") {
			return []byte("fio-3.33\n"), nil
		}
		v := iops * math.Exp(noise*r.NormFloat64())
		side := `{"iops": %f, "bw_bytes": %f, "total_ios": 1000, "runtime": 300, "lat_ns": {"mean": %f}, "clat_ns": {"percentile": {"99.000000": %f}}}`
		d := fmt.Sprintf(side, v, v*4096, 1e9/v, 3e9/v)
		return []byte(`note: something of fio's` + "\n" + `{"jobs": [{"error": 0, "read": ` + d + `, "write": ` + d + `}]}`), nil
	}
}

func small(t *testing.T) Options {
	t.Helper()
	return Options{Dir: onDisk(t), Size: 1 << 20, Quick: true, Pairs: 12, Seed: 1, Node: map[string]string{"name": "n1"}}
}

// onDisk returns a folder of the test's own on a file system with direct I/O.
func onDisk(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	if err := checkFolder(dir, 1<<20); refuse.KindOf(err) == refuse.Cannot {
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

func TestRun(t *testing.T) {
	o := small(t)
	var told []Progress
	rep, err := Run(t.Context(), o, Arms{Host: fake(1, 1000), Node: fake(2, 700), Null: fake(3, 1000)},
		func(p Progress) { told = append(told, p) })
	if err != nil {
		t.Fatal(err)
	}
	wantEmpty(t, o.Dir)
	if rep.Partial || rep.Pairs != 12 || len(rep.Trials) != 4*3*13 || len(rep.Rows) != 4 {
		t.Errorf("partial %v, %d pairs, %d trials, %d rows", rep.Partial, rep.Pairs, len(rep.Trials), len(rep.Rows))
	}
	for _, r := range rep.Rows {
		if p := r.Penalty; p.Verdict != Worse || math.Abs(p.PenaltyPct-30) > 3 || p.CI95Pct[0] > p.PenaltyPct || p.Pairs != 12 {
			t.Errorf("%s: %+v", r.Name, p)
		}
		if r.NullComp.Verdict != Equivalent || r.Published == nil || r.Host.Trials != 12 {
			t.Errorf("%s: %+v %+v %+v", r.Name, r.NullComp, r.Published, r.Host)
		}
	}
	checkOrder(t, rep)
	if last := told[len(told)-1]; last.Total != int64(len(rep.Trials)) || last.Done != last.Total-1 {
		t.Errorf("progress ends with %+v", last)
	}
}

// checkOrder: every block is three neighbours, one of each arm, and all orders occur.
func checkOrder(t *testing.T, rep *Report) {
	t.Helper()
	orders := map[string]int{}
	for b := range slices.Chunk(rep.Trials, 3) {
		arms := []string{b[0].Arm, b[1].Arm, b[2].Arm}
		orders[strings.Join(arms, " ")]++
		slices.Sort(arms)
		if b[0].Row != b[1].Row || b[1].Row != b[2].Row || b[0].Round != b[2].Round || !slices.Equal(arms, []string{"host", "node", "null"}) {
			t.Fatalf("not a block: %+v", b)
		}
	}
	if len(orders) != 6 {
		t.Errorf("the arms came in %d of 6 orders: %v", len(orders), orders)
	}
}

func TestSameSeedSameOrder(t *testing.T) {
	var order [2][]string
	for i := range order {
		rep, err := Run(t.Context(), small(t), Arms{Host: fake(1, 1000), Null: fake(3, 1000)}, nil)
		if err != nil {
			t.Fatal(err)
		}
		for _, tr := range rep.Trials {
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
			host, calls := fake(1, 1000), 0
			arms := Arms{Null: fake(2, 1000), Host: func(ctx context.Context, argv []string) ([]byte, error) {
				if calls++; calls > c.after {
					cancel()
					return nil, ctx.Err()
				}
				return host(ctx, argv)
			}}
			o := small(t)
			rep, err := Run(ctx, o, arms, nil)
			if !errors.Is(err, context.Canceled) {
				t.Errorf("error %v", err)
			}
			wantEmpty(t, o.Dir)
			if (rep != nil) != c.kept {
				t.Fatalf("report %v", rep)
			}
			if rep != nil && (!rep.Partial || len(rep.Rows) != 4 || rep.Rows[0].Host == nil) {
				t.Errorf("partial %v, rows %+v", rep.Partial, rep.Rows)
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
	rep, err := Run(t.Context(), small(t), Arms{Host: fake(2, 1000), Node: once, Null: fake(3, 1000)}, nil)
	if err != nil {
		t.Fatal(err)
	}
	flagged := 0
	for _, r := range rep.Rows {
		if slices.Contains(r.Flags, TrialError) {
			flagged++
			if r.Penalty.Pairs != 11 || r.NullComp.Pairs != 12 {
				t.Errorf("pairs %d and %d", r.Penalty.Pairs, r.NullComp.Pairs)
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
	rep, err = Run(t.Context(), small(t), Arms{Host: broken, Null: broken}, nil)
	if err == nil || rep == nil || !rep.Partial {
		t.Errorf("an arm that breaks: %v, report %v", err, rep)
	}
}

func TestRefusals(t *testing.T) {
	version := func(v string, err error) Arm {
		return func(context.Context, []string) ([]byte, error) { return []byte(v), err }
	}
	ok := fake(1, 1)
	dir := onDisk(t)
	for _, c := range []struct {
		name string
		o    Options
		host Arm
		kind refuse.Kind
		says string
	}{
		{"no fio", Options{Dir: dir}, version("", &exec.Error{Name: "fio", Err: exec.ErrNotFound}), refuse.Cannot, "apt-get install fio"},
		{"old fio", Options{Dir: dir}, version("fio-2.19", nil), refuse.Cannot, "too old"},
		{"two fios", Options{Dir: dir}, version("fio-3.28", nil), refuse.Cannot, "do not have the same fio"},
		{"no room", Options{Dir: dir, Size: 1 << 60}, ok, refuse.Cannot, "free, and measuring takes 1048576TiB"},
		{"no folder", Options{Dir: filepath.Join(dir, "none")}, ok, refuse.NotFound, "there is no folder"},
		{"memory", Options{Dir: "/dev/shm"}, ok, refuse.Cannot, "no disk to measure"},
		{"no place", Options{}, ok, refuse.Invalid, "either a folder or a device"},
		{"not a device", Options{Device: dir}, ok, refuse.Invalid, "not a block device"},
		{"destroy a folder", Options{Dir: dir, DestroyData: true}, ok, refuse.Invalid, "goes with a device"},
		{"margin", Options{Dir: dir, MarginPct: 100}, ok, refuse.Invalid, "between 0 and 100"},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := Run(t.Context(), c.o, Arms{Host: c.host, Null: ok}, nil)
			if refuse.KindOf(err) != c.kind || !strings.Contains(err.Error(), c.says) {
				t.Errorf("%v", err)
			}
			wantEmpty(t, dir)
		})
	}
}

func TestTwoRunsInOneFolder(t *testing.T) {
	o := Options{Dir: onDisk(t), Size: 1 << 20}
	_, undo, err := prepare(t.Context(), o, func(int64, int64) {})
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := prepare(t.Context(), o, func(int64, int64) {}); refuse.KindOf(err) != refuse.Busy {
		t.Errorf("a second run in the same folder: %v", err)
	}
	if err := undo(); err != nil {
		t.Error(err)
	}
	wantEmpty(t, o.Dir)

	leave(t, filepath.Join(o.Dir, dataFile))
	target, undo, err := prepare(t.Context(), o, func(int64, int64) {})
	if err != nil {
		t.Fatal(err)
	}
	if fi, err := os.Stat(target.Path); err != nil || fi.Size() != 1<<20 {
		t.Errorf("%v %v", fi, err)
	}
	if err := undo(); err != nil {
		t.Error(err)
	}
	wantEmpty(t, o.Dir)
}

// leave leaves a data file as a killed run does.
func leave(t *testing.T, path string) {
	t.Helper()
	f, err := newFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteString("old"); err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
}

func TestCommand(t *testing.T) {
	got := strings.Join(command(newRow(RandomRead, 4096, 512), Target{Path: "/srv/a:b", Size: 1 << 20}, time.Second, 300*time.Millisecond), " ")
	want := `fio --output-format=json --eta=never --name=berth --filename=/srv/a\:b --allow_file_create=0 --size=1048576 ` +
		`--rw=randread --bs=4096 --direct=1 --ioengine=psync --thread --numjobs=512 --group_reporting --norandommap ` +
		`--time_based --runtime=1000ms --ramp_time=300ms --clocksource=clock_gettime --disk_util=0 --percentile_list=99 --readonly`
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func TestParseFioErrors(t *testing.T) {
	for _, c := range []struct{ out, says string }{
		{"", "no JSON"},
		{"{", "it ends in the middle"},
		{`{"jobs":[]}`, "0 jobs"},
		{`{"jobs":[{"error":28}]}`, "errno 28"},
		{`{"jobs":[{"read":{"iops":0}}]}`, "not one request"},
	} {
		if _, err := parseFio([]byte(c.out), RandomRead); err == nil || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%q: %v", c.out, err)
		}
	}
}

func FuzzParseFio(f *testing.F) {
	f.Add([]byte(`{"jobs":[{"error":0,"read":{"iops":1,"total_ios":1,"clat_ns":{"percentile":{"99.000000":1}}}}]}`))
	f.Add([]byte(`note {"jobs":[{}]}`))
	f.Fuzz(func(t *testing.T, out []byte) {
		if m, err := parseFio(out, RandomRead); err == nil && m.IOPS <= 0 {
			t.Errorf("accepted %+v", m)
		}
	})
}

func TestRows(t *testing.T) {
	full := Rows(false, 2)
	if len(full) != 13 || full[0].Jobs != 512 {
		t.Errorf("%+v", full)
	}
	for _, r := range append(full, Rows(true, 2)...) {
		if len(r.Name) > 14 {
			t.Errorf("%q breaks the table", r.Name)
		}
		if p, err := published(r); err != nil || p == nil {
			t.Errorf("%s: %v %v", r.Name, p, err)
		}
	}
	if p, _ := published(newRow(RandomRead, 32<<10, 512)); p.PenaltyPct != 47.9 {
		t.Errorf("%+v", p)
	}
	if got := Rows(true, 2)[0].Name; got != "read 4K x32" {
		t.Error(got)
	}
}

// What merely has the data file's name is not touched.
func TestForeignDataFile(t *testing.T) {
	o := Options{Dir: onDisk(t), Size: 1 << 20}
	precious := filepath.Join(o.Dir, "precious")
	if err := os.WriteFile(precious, []byte("data"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, link := range map[string]func(string, string) error{
		"hard link": os.Link, "symbolic link": os.Symlink, "folder": func(_, at string) error { return os.Mkdir(at, 0o700) },
		"file":       func(_, at string) error { return os.WriteFile(at, []byte("data"), 0o600) },
		"empty file": func(_, at string) error { return os.WriteFile(at, nil, 0o600) },
	} {
		for _, at := range []string{dataFile, dataFile + freshName} {
			path := filepath.Join(o.Dir, at)
			if err := link(precious, path); err != nil {
				t.Fatal(err)
			}
			before, err := os.Lstat(path)
			if err != nil {
				t.Fatal(err)
			}
			o.fresh = at != dataFile
			if _, _, err := prepare(t.Context(), o, func(int64, int64) {}); refuse.KindOf(err) != refuse.Busy {
				t.Errorf("%s %s: taken for a data file: %v", name, at, err)
			}
			if b, err := os.ReadFile(precious); err != nil || string(b) != "data" {
				t.Errorf("%s %s: %q %v", name, at, b, err)
			}
			if after, err := os.Lstat(path); err != nil || !os.SameFile(before, after) || after.Size() != before.Size() {
				t.Errorf("%s %s: %v %v", name, at, after, err)
			}
			if err := os.Remove(path); err != nil {
				t.Fatal(err)
			}
			if err := os.Remove(precious); err != nil {
				t.Fatal(err)
			}
			wantEmpty(t, o.Dir)
			if err := os.WriteFile(precious, []byte("data"), 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// Both files that a killed run left are taken over, and gone afterwards.
func TestRealLeftFiles(t *testing.T) {
	needFio(t)
	dir := onDisk(t)
	leave(t, filepath.Join(dir, dataFile))
	leave(t, filepath.Join(dir, dataFile+freshName))
	defs, err := find([]string{"wnodes-file"})
	if err != nil {
		t.Fatal(err)
	}
	b, err := makeDiskBed(t.Context(), &defs[0], &StudyOptions{Dirs: []string{dir}, Size: 4 << 20}, hostLab())
	if err != nil {
		t.Fatal(err)
	}
	leave(t, filepath.Join(dir, dataFile+freshName))
	if got, err := b.rows[0].job.measure(t.Context(), b.arms[0], 100*time.Millisecond, 0); err != nil || got["bytes_per_second"] <= 0 {
		t.Errorf("%s: %v %v", b.rows[0].Name, got, err)
	}
	if _, err := os.Stat(filepath.Join(dir, dataFile+freshName)); err == nil {
		t.Error("the new file outlives its trial")
	}
	if err := b.close(); err != nil {
		t.Error(err)
	}
	wantEmpty(t, dir)
}

// A device that may not be written has no write rows; requests smaller than the device's unit are left out.
func TestFitting(t *testing.T) {
	rows, notes := fitting(Options{}, Target{ReadsOnly: true, DirectIO: 4096}, 2)
	if len(rows) != 6 || len(notes) != 5+2+1 {
		t.Errorf("%d rows, notes %q", len(rows), notes)
	}
}
