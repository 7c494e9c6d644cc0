package bench

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"berth/internal/refuse"
)

func needFio(t *testing.T) {
	t.Helper()
	if _, err := exec.LookPath("fio"); err != nil {
		t.Skip("fio is not installed: apt-get install fio")
	}
}

// The host against itself, on a real disk with the real fio.
func TestRealNullRun(t *testing.T) {
	needFio(t)
	dir := onDisk(t)
	o := Options{
		Dir: dir, Size: 64 << 20, Run: 300 * time.Millisecond, Warm: 50 * time.Millisecond, Pairs: 3,
		Rows: []Row{newRow(RandomRead, 4096, 8), newRow(SequentialWrite, 32<<10, 1)},
	}
	rep, err := Run(t.Context(), o, Arms{Host: Host, Null: Host}, nil)
	if err != nil {
		t.Fatal(err)
	}
	wantEmpty(t, dir)
	if len(rep.Trials) != 2*2*4 || rep.Fio == "" || rep.Machine.FileSystem == "" || !rep.Target.Written {
		t.Errorf("%d trials, %+v %+v", len(rep.Trials), rep.Machine, rep.Target)
	}
	for _, r := range rep.Rows {
		t.Logf("%s: %+v %+v", r.Name, *r.Host, *r.NullComp)
		if r.Host.Trials != 3 || r.Host.IOPS <= 0 || r.Host.LatMean <= 0 || r.Host.LatP99 < r.Host.LatMean/10 ||
			slices.Contains(r.Flags, TrialError) {
			t.Errorf("%s: %+v, flags %v", r.Name, *r.Host, r.Flags)
		}
		if r.Host.Bandwidth < r.Host.IOPS*float64(r.Block)*.8 {
			t.Errorf("%s: %v bytes/s do not fit %v requests/s", r.Name, r.Host.Bandwidth, r.Host.IOPS)
		}
	}
	for _, tr := range rep.Trials {
		if tr.RunMillis < 250 || tr.RunMillis > 2000 {
			t.Errorf("a trial of 300 ms measured %d ms: is the warm-up counted?", tr.RunMillis)
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
	_, err := Run(ctx, Options{Dir: dir, Size: 4 << 20, Run: time.Minute, Rows: []Row{newRow(RandomRead, 4096, 2)}},
		Arms{Host: Host, Null: Host}, nil)
	if !errors.Is(err, context.DeadlineExceeded) || time.Since(begun) > 10*time.Second {
		t.Errorf("%v after %v", err, time.Since(begun))
	}
	wantEmpty(t, dir)
	if pid, err := unix.Wait4(-1, nil, unix.WNOHANG, nil); !errors.Is(err, unix.ECHILD) {
		t.Errorf("a child is left: %d %v", pid, err)
	}
}

// A command of the host arm does not outlive a Berth that is killed.
func TestRealKilled(t *testing.T) {
	seconds := fmt.Sprintf("60.%d", os.Getpid()) // tells this test's sleep from others
	if _, err := exec.LookPath("pgrep"); err != nil {
		t.Skip("pgrep is not installed: apt-get install procps")
	}
	if s := os.Getenv("BENCH_TEST_SLEEP"); s != "" {
		_, _ = Host(t.Context(), []string{"sleep", s})
		return
	}
	berth := exec.Command(os.Args[0], "-test.run=^TestRealKilled$")
	berth.Env = append(os.Environ(), "BENCH_TEST_SLEEP="+seconds)
	if err := berth.Start(); err != nil {
		t.Fatal(err)
	}
	running := func() bool { return exec.Command("pgrep", "-fx", "sleep "+seconds).Run() == nil }
	if !within(5*time.Second, running) {
		t.Error("the command did not start")
	}
	if err := berth.Process.Kill(); err != nil {
		t.Error(err)
	}
	_ = berth.Wait()
	if !within(5*time.Second, func() bool { return !running() }) {
		t.Error("the command outlives its parent")
	}
}

func within(limit time.Duration, ok func() bool) bool {
	for end := time.Now().Add(limit); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		if ok() {
			return true
		}
	}
	return false
}

func TestRealFioFails(t *testing.T) {
	needFio(t)
	_, err := Host(t.Context(), command(newRow(RandomRead, 4096, 1), Target{Path: filepath.Join(t.TempDir(), "none"), Size: 1 << 20}, time.Second, time.Second))
	if err == nil {
		t.Error("fio works without its file")
	}
	if _, err := Host(t.Context(), []string{"no-such-fio-" + t.Name(), "--version"}); !errors.Is(err, exec.ErrNotFound) {
		t.Errorf("%v", err)
	}
}

// A loop device: read only without DestroyData, written with it, refused while it is mounted.
func TestRealDevice(t *testing.T) {
	needFio(t)
	dev := loopDevice(t)
	arms := Arms{Host: Host, Null: Host}
	o := Options{
		Device: dev, Size: 16 << 20, Run: 50 * time.Millisecond, Warm: 10 * time.Millisecond, Pairs: 1,
		Rows: []Row{newRow(RandomRead, 4096, 2), newRow(SequentialWrite, 4096, 1)},
	}
	rep, err := Run(t.Context(), o, arms, nil)
	if err != nil {
		t.Fatal(err)
	}
	if len(rep.Rows) != 1 || rep.Target.Written || rep.Target.Size != 8<<20 || rep.Machine.Device == "" {
		t.Errorf("rows %d, %+v, %+v", len(rep.Rows), rep.Target, rep.Machine)
	}
	o.DestroyData = true
	if rep, err = Run(t.Context(), o, arms, nil); err != nil || len(rep.Rows) != 2 || !rep.Target.Written {
		t.Fatalf("%v %v", rep, err)
	}
	held, err := os.OpenFile(dev, os.O_RDONLY|unix.O_EXCL, 0) // as a mount does
	if err != nil {
		t.Fatal(err)
	}
	defer held.Close()
	if _, err := Run(t.Context(), o, arms, nil); refuse.KindOf(err) != refuse.Busy {
		t.Errorf("a device in use: %v", err)
	}
}

// loopDevice returns a loop device of 8 MiB that is the test's own.
func loopDevice(t *testing.T) string {
	t.Helper()
	back := filepath.Join(t.TempDir(), "disk")
	if err := os.WriteFile(back, make([]byte, 8<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command("losetup", "--find", "--show", back).Output()
	if err != nil {
		t.Skipf("no loop device can be had (losetup: %v)", err)
	}
	dev := strings.TrimSpace(string(out))
	t.Cleanup(func() {
		if err := exec.Command("losetup", "--detach", dev).Run(); err != nil {
			t.Errorf("detach %s: %v", dev, err)
		}
	})
	return dev
}
