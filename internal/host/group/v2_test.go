package group

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
	"pgregory.net/rapid"

	"berth/internal/host"
	"berth/internal/host/group/grouptest"
	"berth/internal/sys/refuse"
	"berth/test/testkit"
)

func TestEnableAbove(t *testing.T) {
	h := grouptest.V2()
	h.V2Enabled = used()
	if e := EnableStep(h, "berth/wn"); e != nil {
		t.Errorf("everything is on: %s", e)
	}
	got := EnableStep(h, "a.slice/b/berth/wn")
	if diff := cmp.Diff([]string{"", "a.slice", "a.slice/b"}, got.Groups); diff != "" {
		t.Error(diff)
	}
}

// TestV2Disabled: a controller that another program has switched off in a group above the limits, or in the node's own, is seen.
func TestV2Disabled(t *testing.T) {
	h, dir := grouptest.Drawn(t)
	const all = "cpuset cpu io memory hugetlb pids"
	groups := []string{h.V2, filepath.Dir(dir), dir}
	for _, g := range groups {
		testkit.Must(t, os.WriteFile(filepath.Join(g, "cgroup.subtree_control"), []byte(all), 0o644))
	}
	if e, has, err := Disabled(h, "berth/wn"); err != nil || e != nil {
		t.Errorf("all is handed on: %v, %q, %v", e, has, err)
	}
	for _, g := range groups {
		file := filepath.Join(g, "cgroup.subtree_control")
		testkit.Must(t, os.WriteFile(file, []byte("cpuset cpu io memory hugetlb"), 0o644))
		e, has, err := Disabled(h, "berth/wn")
		if err != nil || e == nil || has != "cpuset cpu io memory hugetlb" {
			t.Fatalf("%s hands no pids on: %v, %q, %v", g, e, has, err)
		}
		testkit.Must(t, e.Do(t.Context()))
		if got := grouptest.Text(t, file); got != "+pids" { // a plain file keeps the written text
			t.Errorf("written to %s: %q", file, got)
		}
		testkit.Must(t, os.WriteFile(file, []byte(all), 0o644))
	}
	if e, has, err := Disabled(h, "berth/gone"); err != nil || e != nil {
		t.Errorf("a group that is gone: %v, %q, %v", e, has, err)
	}
}

func TestV2EnableAndGroup(t *testing.T) {
	h, _ := grouptest.Drawn(t)
	steps, err := Steps(h, "berth/other")
	testkit.Must(t, err)
	e := steps[0].(*Enable)
	testkit.Must(t, e.Do(t.Context()))
	if got := grouptest.Text(t, filepath.Join(h.V2, "cgroup.subtree_control")); got != "+cpuset +hugetlb +io" {
		t.Errorf("root: %q", got)
	}
	if err := e.Verify(t.Context()); err == nil { // plain files keep the written text, not its meaning
		t.Error("Verify did not look")
	}
	testkit.Must(t, os.WriteFile(filepath.Join(h.V2, "cgroup.subtree_control"), []byte("cpu memory pids cpuset hugetlb io"), 0o644))
	testkit.Must(t, e.Verify(t.Context()))

	g := steps[1].(*Group)
	if g.Root != "berth/other/node" {
		t.Errorf("root of the container: %q", g.Root)
	}
	g.Root = "" // only the kernel makes the files of a group; see TestKernelHelpers
	testkit.Must(t, g.Prepare(t.Context()))
	testkit.Must(t, g.Do(t.Context()))
	testkit.Must(t, g.Verify(t.Context()))
	if got := grouptest.Text(t, filepath.Join(h.V2, "berth/cgroup.subtree_control")); got != "+cpu +cpuset +io +memory +pids" {
		t.Errorf("parent: %q", got)
	}
	testkit.Must(t, g.Undo(t.Context()))
	testkit.Must(t, g.Undo(t.Context()))
	if len(places(h, "berth/other")) > 0 || len(places(h, "berth/wn")) != 1 {
		t.Error("undo removed the wrong group")
	}
}

// TestSum makes two groups in a parent of plain files: the parent gets the sum of their protection.
func TestSum(t *testing.T) {
	top := t.TempDir()
	file := func(parts ...string) string { return filepath.Join(append([]string{top}, parts...)...) }
	for _, d := range []string{"berth/a", "berth/b"} {
		if err := os.MkdirAll(file(d), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for _, f := range []string{"berth/memory.low", "berth/a/memory.low", "berth/b/memory.low"} {
		if err := os.WriteFile(file(f), []byte("0\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, tt := range []struct{ group, value, want string }{
		{"a", "1073741824", "1073741824"},
		{"b", "1048576", "1074790400"},
		{"a", "0", "1048576"},
		{"a", "max", "max"},
	} {
		if err := (Write{File: file("berth", tt.group, "memory.low"), Value: tt.value, Sum: true}).Do(); err != nil {
			t.Fatal(err)
		}
		if got, _ := ReadFile(file("berth/memory.low")); got != tt.want {
			t.Errorf("%s to %s: the parent has %s, want %s", tt.group, tt.value, got, tt.want)
		}
	}
	if err := (Write{File: file("berth/memory.low"), Value: "0", Sum: true}).Do(); err != nil { // the parent is the root of the tree
		t.Error(err)
	}
}

// TestSumLocked: a lock that any user of the host can take of the folder keeps nobody waiting who writes or looks.
func TestSumLocked(t *testing.T) {
	parent := drawSum(t, "1048576", "0")
	dir, err := os.Open(parent)
	testkit.Must(t, err)
	t.Cleanup(func() { dir.Close() })
	testkit.Must(t, unix.Flock(int(dir.Fd()), unix.LOCK_EX))
	w := Write{File: filepath.Join(parent, "a/memory.low"), Value: "1048576", Sum: true}
	done := make(chan string, 1)
	go func() {
		has, err := w.Short()
		done <- fmt.Sprintf("%q, %v, %v", has, err, w.Do())
	}()
	select {
	case got := <-done:
		if got != `"0", <nil>, <nil>` {
			t.Errorf("short and written: %s", got)
		}
	case <-time.After(testkit.Bound()):
		t.Fatal("it waits for a lock of the folder")
	}
	if got := grouptest.Text(t, filepath.Join(parent, "memory.low")); got != "1048576" {
		t.Errorf("the parent has %s", got)
	}
}

// TestSumWritten: who looks between the writing of a group's value and that of the sum above it says nothing.
func TestSumWritten(t *testing.T) {
	parent := drawSum(t, "1048576", "1048576")
	file := filepath.Join(parent, "memory.low")
	testkit.Must(t, os.Rename(file, file+".later"))
	testkit.Must(t, unix.Mkfifo(file, 0o600))
	done := make(chan error, 1)
	go func() {
		f, err := os.OpenFile(file, os.O_WRONLY, 0) // waits for the reader
		if err == nil {
			_, err = f.WriteString("0\n")
			err = errors.Join(err, os.Rename(file+".later", file), f.Close())
		}
		done <- err
	}()
	if has, err := (Write{File: filepath.Join(parent, "a/memory.low"), Value: "1048576", Sum: true}).Short(); has != "" || err != nil {
		t.Errorf("it is short: %q, %v", has, err)
	}
	testkit.Must(t, <-done)
}

// drawSum makes a parent of plain files with a group a in it, and returns its path.
func drawSum(t *testing.T, a, sum string) string {
	parent := filepath.Join(t.TempDir(), "berth")
	testkit.Must(t, os.MkdirAll(filepath.Join(parent, "a"), 0o755))
	testkit.Must(t, os.WriteFile(filepath.Join(parent, "memory.low"), []byte(sum), 0o600))
	testkit.Must(t, os.WriteFile(filepath.Join(parent, "a/memory.low"), []byte(a), 0o600))
	return parent
}

func TestProcs(t *testing.T) {
	h, _ := grouptest.Drawn(t)
	pids, err := Procs(h, "berth/wn")
	testkit.Must(t, err)
	if diff := cmp.Diff([]int{7, 9, 12}, pids); diff != "" {
		t.Error(diff)
	}
	if pids, err = Procs(h, "berth/none"); err != nil || len(pids) > 0 {
		t.Errorf("a group that is not there: %v, %v", pids, err)
	}
}

// TestRound: the value that the kernel makes of a number of bytes always counts as held; the next unit never does.
func TestRound(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		unit := rapid.SampledFrom([]int64{4096, 2 << 20}).Draw(t, "unit")
		units := rapid.Int64Range(0, 1<<30).Draw(t, "units")
		rest := rapid.Int64Range(0, unit-1).Draw(t, "rest")
		w := Write{Unit: unit, None: "-1", Value: itoa(units*unit + rest)}
		if !w.Holds(itoa(units * unit)) {
			t.Errorf("%s does not hold %s", itoa(units*unit), w.Value)
		}
		if w.Holds(itoa((units+1)*unit)) || w.Holds("max") || w.Holds("9223372036854771712") {
			t.Errorf("too much holds %s", w.Value)
		}
	})
	for _, none := range []Write{{Unit: 4096, None: "-1", Value: "-1"}, {Unit: 4096, None: "max", Value: "max"}} {
		for _, got := range []string{"max", "9223372036854771712"} {
			if !none.Holds(got) {
				t.Errorf("%s is no limit", got)
			}
		}
	}
}

func itoa(n int64) string { return strconv.FormatInt(n, 10) }

func TestJournal(t *testing.T) {
	h := grouptest.V2()
	steps, err := Steps(h, "berth/wn")
	testkit.Must(t, err)
	grouptest.Journal(t, Kinds(), append(steps, DelegateStep(h, "berth/wn", 100000, 100000))...)
	if _, err := Steps(host.Cgroups{}, "berth/wn"); refuse.KindOf(err) != refuse.Cannot {
		t.Errorf("a host without hierarchies: %v", err)
	}
}

// TestWeightsInOrder: a greater weight never gives fewer shares, and all shares are in the kernel's bounds.
func TestWeightsInOrder(t *testing.T) {
	last := int64(0)
	for w := int64(1); w <= 10000; w++ {
		s := Shares(w)
		if s < last || s < minShares || s > maxShares {
			t.Fatalf("weight %d gives %d shares after %d", w, s, last)
		}
		last = s
	}
	if Shares(100) != normalShares {
		t.Errorf("100 gives %d shares", Shares(100))
	}
}
