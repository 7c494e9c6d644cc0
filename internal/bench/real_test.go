package bench

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"berth/internal/bench/bed"
	"berth/internal/bench/result"
	"berth/internal/bench/side"
	"berth/internal/sys/refuse"
	"berth/test/loop"
	"berth/test/testkit"
)

func needFio(t *testing.T) {
	t.Helper()
	if testing.Short() {
		t.Skip("needs a longer run: real trials")
	}
	if _, err := exec.LookPath("fio"); err != nil {
		t.Skip("fio is not installed: apt-get install fio")
	}
}

// The host against itself, on a real disk with the real fio.
func TestRealNullRun(t *testing.T) {
	t.Parallel()
	needFio(t)
	dir := onDisk(t)
	run := 100 * time.Millisecond
	if testkit.Measures() {
		run = 300 * time.Millisecond
	}
	o := bed.Options{Dirs: []string{dir}, Size: 16 << 20, Run: run, Warm: 50 * time.Millisecond, Pairs: 3}
	s, err := RunJobs(t.Context(), o, result.About{Name: "null"}, []bed.Job{
		{Name: "read", Pattern: "randread", Block: 4096, Threads: 8}, {Name: "write", Pattern: "write", Block: 32 << 10, Threads: 1},
	}, sidesOf(side.Host, side.Host, nil), nil)
	if err != nil {
		t.Fatal(err)
	}
	wantEmpty(t, dir)
	e := s.Experiments[0]
	if len(e.Trials) != 2*2*4 || len(s.Tools) != 1 || e.Targets[0].FileSystem == "" || !e.Targets[0].Written {
		t.Errorf("%d trials, %+v %+v", len(e.Trials), s.Tools, e.Targets)
	}
	for _, r := range e.Rows {
		host := r.Arms[0]
		t.Logf("%s: %+v", r.Name, host)
		if host.Trials != 3 || host.Values["iops"] <= 0 || slices.Contains(r.Flags, result.TrialError) {
			t.Errorf("%s: %+v, flags %v", r.Name, host, r.Flags)
		}
	}
	for _, tr := range e.Trials {
		v, block := tr.Values, map[string]float64{"read": 4096, "write": 32 << 10}[tr.Row]
		if v["bytes_per_second"] < v["iops"]*block*.8 || v["lat_mean_us"] <= 0 || v["lat_p99_us"] < v["lat_mean_us"]/10 || tr.WallMS < run.Milliseconds() || testkit.Measures() && tr.WallMS > 5000 {
			t.Errorf("a trial of %v: %+v", run, tr)
		}
	}
}

// A cancelled run has ended its fio and removed its file when it returns.
func TestRealCancel(t *testing.T) {
	needFio(t)
	dir := onDisk(t)
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	begun := time.Now()
	_, err := RunJobs(ctx, bed.Options{Dirs: []string{dir}, Size: 4 << 20, Run: time.Minute}, result.About{Name: "null"},
		[]bed.Job{{Name: "read", Pattern: "randread", Block: 4096, Threads: 2}}, sidesOf(side.Host, side.Host, nil), nil)
	if !errors.Is(err, context.DeadlineExceeded) || testkit.Measures() && time.Since(begun) > 10*time.Second {
		t.Errorf("%v after %v", err, time.Since(begun))
	}
	wantEmpty(t, dir)
	if pid, err := unix.Wait4(-1, nil, unix.WNOHANG, nil); !errors.Is(err, unix.ECHILD) {
		t.Errorf("a child is left: %d %v", pid, err)
	}
}

// A loop device: read only without DestroyData, written with it, refused while it is mounted.
func TestRealDevice(t *testing.T) {
	t.Parallel()
	needFio(t)
	dev := loop.ForTest(t, 8<<20)
	o := bed.Options{Devices: []string{dev}, Size: 16 << 20, Run: 50 * time.Millisecond, Warm: 10 * time.Millisecond, Pairs: 1}
	measure := func() (*result.Study, error) {
		return RunJobs(t.Context(), o, result.About{Name: "null"}, []bed.Job{
			{Name: "read", Pattern: "randread", Block: 4096, Threads: 2}, {Name: "write", Pattern: "write", Block: 4096, Threads: 1},
		}, sidesOf(side.Host, side.Host, nil), nil)
	}
	s, err := measure()
	if err != nil {
		t.Fatal(err)
	}
	if e := s.Experiments[0]; len(e.Rows) != 1 || e.Targets[0].Written || e.Targets[0].Size != 8<<20 || e.Targets[0].Device == "" {
		t.Errorf("rows %d, %+v", len(e.Rows), e.Targets)
	}
	o.DestroyData = true
	if s, err = measure(); err != nil || len(s.Experiments[0].Rows) != 2 || !s.Experiments[0].Targets[0].Written {
		t.Fatalf("%v %v", s, err)
	}
	held, err := os.OpenFile(dev, os.O_RDONLY|unix.O_EXCL, 0) // as a mount does
	if err != nil {
		t.Fatal(err)
	}
	defer held.Close()
	if _, err := measure(); refuse.KindOf(err) != refuse.Busy {
		t.Errorf("a device in use: %v", err)
	}
}
