package bed

import (
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"berth/internal/bench/side"
	"berth/internal/host"
	"berth/internal/sys/refuse"
	"berth/test/loop"
	"berth/test/testkit"
)

// Groups are made with what they need to take a process, and are gone afterwards, also when the maker was killed.
func TestRealGroups(t *testing.T) {
	h, err := host.ReadCgroups("/proc")
	if err != nil {
		t.Fatal(err)
	}
	testkit.NeedsRoot(t)
	if os.Getenv("BENCH_TEST_GROUPS") != "" { // the one that is killed
		var l Lineup
		if _, err := l.Groups(Trying{}, h, os.Getpid()); err != nil {
			fmt.Println(err)
		}
		fmt.Println("made")
		time.Sleep(time.Minute)
		return
	}
	left := func(pid int) []string {
		var all []string
		for _, mount := range append(slices.Collect(maps.Values(h.V1)), h.V2) {
			found, _ := filepath.Glob(filepath.Join(mount, fmt.Sprintf("berth-explain-%d-*", pid)))
			all = append(all, found...)
		}
		return all
	}
	var l Lineup
	undo, err := l.Groups(Trying{}, h, os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	if len(l.Arms) == 0 || len(left(os.Getpid())) == 0 {
		t.Errorf("%d arms, groups %v", len(l.Arms), left(os.Getpid()))
	}
	for _, a := range l.Arms {
		if _, err := a.Run(t.Context(), []string{"cat", "/proc/self/cgroup"}); err != nil {
			t.Errorf("%s: %v", a.Name, err)
		}
	}
	if err := undo(); err != nil || len(left(os.Getpid())) > 0 {
		t.Errorf("%v, left %v", err, left(os.Getpid()))
	}

	other := testkit.Again(t, "TestRealGroups", "BENCH_TEST_GROUPS=1")
	out, err := other.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := other.Start(); err != nil {
		t.Fatal(err)
	}
	said := make([]byte, 5)
	if _, err := out.Read(said); err != nil || string(said) != "made\n" {
		t.Errorf("%q %v", said, err)
	}
	if err := other.Process.Kill(); err != nil {
		t.Error(err)
	}
	_ = other.Wait()
	if !testkit.Happens(func() bool { return len(left(other.Process.Pid)) == 0 }) {
		t.Errorf("left by a killed one: %v", left(other.Process.Pid))
	}
}

// The scheduler of a device of our own is another in some arms, and what it was afterwards.
func TestRealScheduler(t *testing.T) {
	needFio(t)
	dev := loop.ForTest(t, 8<<20)
	file, now, offered := side.Schedulers("/sys", filepath.Base(dev))
	if now == "" || len(offered) < 2 {
		t.Skipf("needs a loop device with two I/O schedulers: %s has %v", dev, offered)
	}
	var l Lineup
	l.Lacks("something", "-", side.Host, "")
	undo, err := l.Settings(Trying{Device: dev, Writes: true, Cores: 2, Schedulers: true, Node: side.Host, Only: []string{"scheduler", "preconditioning"}})
	if err != nil {
		t.Fatal(err)
	}
	arms := l.AsItIs(sidesOf(side.Host, side.Host, side.Host))
	active := func(a side.Arm) string {
		out, err := a(t.Context(), []string{"cat", file})
		if err != nil {
			t.Error(err)
		}
		_, rest, _ := strings.Cut(string(out), "[")
		name, _, _ := strings.Cut(rest, "]")
		return name
	}
	tried := 0
	for _, a := range l.Arms {
		want := now
		if _, name, ok := strings.Cut(a.Name, "scheduler:"); ok {
			want = name
			tried++
		}
		if got := active(a.Run); got != want {
			t.Errorf("%s runs under %s", a.Name, got)
		}
		if got := active(arms[0].Run); got != now {
			t.Errorf("the host runs under %s after %s", got, a.Name)
		}
	}
	if tried < 2 {
		t.Errorf("%d arms with another scheduler of %v", tried, offered)
	}
	active(l.Arms[len(l.Arms)-1].Run)
	if err := undo(); err != nil {
		t.Error(err)
	}
	if _, is, _ := side.Schedulers("/sys", filepath.Base(dev)); is != now {
		t.Errorf("the scheduler is %s, it was %s", is, now)
	}
	if _, err := new(Lineup).Settings(Trying{Schedulers: true, Node: side.Host}); refuse.KindOf(err) != refuse.Invalid {
		t.Errorf("a scheduler without a device that was named: %v", err)
	}
}

func TestArmsOfArms(t *testing.T) {
	var got []string
	seen := func(_ context.Context, argv []string) ([]byte, error) { got = argv; return nil, nil }
	argv := []string{"fio", "--filename=/a", "--numjobs=512"}
	for _, c := range []struct {
		arm  side.Arm
		want []string
	}{
		{side.OnFile(seen, "/b:c"), []string{"fio", `--filename=/b\:c`, "--numjobs=512"}},
		{side.WithJobs(seen, 3), []string{"fio", "--filename=/a", "--numjobs=3"}},
		{side.OnCPU(seen, "1"), []string{"taskset", "--cpu-list", "1", "fio", "--filename=/a", "--numjobs=512"}},
	} {
		if _, err := c.arm(t.Context(), argv); err != nil {
			t.Error(err)
		}
		if d := cmp.Diff(c.want, got); d != "" || argv[2] != "--numjobs=512" {
			t.Error(d, argv)
		}
	}
}
