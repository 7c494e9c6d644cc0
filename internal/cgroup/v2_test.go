package cgroup

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"berth/internal/block"
	"berth/internal/host"
	"berth/internal/refuse"
	"berth/internal/vnode"
)

// drawnV2 makes a v2 tree of plain files, with the control files that a kernel makes for one group.
func drawnV2(t *testing.T) (h host.Cgroups, group string) {
	t.Helper()
	h = v2Host()
	h.V2 = t.TempDir()
	group = filepath.Join(h.V2, "berth/wn")
	must(t, os.MkdirAll(group, 0o755))
	for name, text := range map[string]string{
		"cgroup.subtree_control":             "cpu memory pids\n",
		"cgroup.controllers":                 "cpuset cpu io memory hugetlb pids rdma misc\n",
		"berth/cgroup.subtree_control":       "\n",
		"berth/cgroup.controllers":           "cpuset cpu io memory pids\n", // without hugetlb
		"berth/wn/cpu.weight":                "100\n",
		"berth/wn/cpu.max":                   "max 100000\n",
		"berth/wn/cpu.stat":                  "usage_usec 1500\nuser_usec 1000\n",
		"berth/wn/cpuset.cpus":               "\n",
		"berth/wn/cpuset.cpus.effective":     "0-1\n",
		"berth/wn/memory.max":                "max\n",
		"berth/wn/memory.high":               "max\n",
		"berth/wn/memory.low":                "0\n",
		"berth/wn/memory.swap.max":           "max\n",
		"berth/wn/memory.current":            "4096\n",
		"berth/wn/memory.events":             "low 0\noom 2\noom_kill 1\n",
		"berth/wn/pids.max":                  "max\n",
		"berth/wn/pids.current":              "7\n",
		"berth/wn/hugetlb.2MB.max":           "max\n",
		"berth/wn/hugetlb.1GB.max":           "max\n",
		"berth/wn/io.max":                    "",
		"berth/wn/cgroup.procs":              "12\n7\n0\n",
		"berth/wn/inner/cgroup.procs":        "9\n",
		"berth/wn/inner/cgroup.threads":      "",
		"berth/wn/inner/empty/cgroup.procs":  "",
		"berth/wn/inner/empty/cgroup.events": "populated 0\n",
	} {
		must(t, os.MkdirAll(filepath.Dir(filepath.Join(h.V2, name)), 0o755))
		must(t, os.WriteFile(filepath.Join(h.V2, name), []byte(text), 0o644))
	}
	return h, group
}

func text(t *testing.T, file string) string {
	t.Helper()
	b, err := os.ReadFile(file)
	must(t, err)
	return strings.TrimSpace(string(b))
}

func TestV2Limits(t *testing.T) {
	h, group := drawnV2(t)
	n := fullNode()
	n.Memory.High, n.Memory.Low = 3<<30, 1<<30
	limits, err := Limits(n, h, "berth/wn", testDisks())
	must(t, err)
	var got []string
	for _, l := range limits {
		must(t, l.Do(t.Context()))
		if err := l.Verify(t.Context()); err != nil {
			t.Error(err)
		}
		got = append(got, l.Key+" | "+l.ReadBack+" | "+l.Mechanism+" | "+text(t, l.Writes[0].File))
	}
	want := []string{
		"cpu.weight | 50 | cpu.weight | 50",
		"cpu.max | 1.5 | cpu.max | 150000 100000",
		"cpu.set | 0-1 | cpuset | 0-1",
		"memory.max | 4GiB | memory.max | 4294967296",
		"memory.high | 3GiB | memory.high | 3221225472",
		"memory.low | 1GiB | memory.low | 1073741824",
		"memory.swap | 1GiB | memory.swap.max | 1073741824",
		"pids | 4096 | pids.max | 4096",
		"hugepages.2MiB | 512MiB | hugetlb | 536870912",
		"hugepages.1GiB | 0 | hugetlb | 0",
		"io.data.read.rate | 200MB/s | io.max | 8:0 rbps=200000000",
		"io.data.read.iops | 5000 | io.max | 8:0 riops=5000",
		"io.data.write.rate | 100MB/s | io.max | 8:0 wbps=100000000",
		"io.log.write.iops | 100 | io.max | 254:0 wiops=100",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}

	// the kernel keeps one line for each disk
	must(t, os.WriteFile(filepath.Join(group, "io.max"),
		[]byte("254:0 rbps=max wbps=max riops=max wiops=100\n8:0 rbps=200000000 wbps=7 riops=max wiops=max\n"), 0o644))
	shown, err := Read(limits[10:])
	must(t, err)
	got = nil
	for _, s := range shown {
		got = append(got, s.ReadBack)
	}
	if diff := cmp.Diff([]string{"200MB/s", "max", "7B/s", "100"}, got); diff != "" {
		t.Error(diff)
	}
	if !shown[0].Holds || shown[1].Holds || shown[2].Holds {
		t.Errorf("holds: %+v", shown)
	}
}

func TestV2CPUSetInForce(t *testing.T) {
	h, group := drawnV2(t)
	limits, err := Limits(&vnode.Node{CPU: vnode.CPU{Set: "2"}}, h, "berth/wn", nil)
	must(t, err)
	must(t, limits[0].Do(t.Context()))
	if err := limits[0].Verify(t.Context()); err == nil || !strings.Contains(err.Error(), "the kernel says 0-1") {
		t.Errorf("the set is not in force: %v", err)
	}
	for _, s := range Changes(limits, nil) {
		must(t, s.Do(t.Context()))
		must(t, s.Verify(t.Context()))
	}
	if got := text(t, filepath.Join(group, "cpuset.cpus")); got != "" {
		t.Errorf("cleared: %q", got)
	}
}

func TestV2LackingFile(t *testing.T) {
	h, group := drawnV2(t)
	must(t, os.Remove(filepath.Join(group, "memory.swap.max")))
	limits, err := Limits(&vnode.Node{Memory: vnode.Memory{Swap: ptr(vnode.Bytes(0))}}, h, "berth/wn", nil)
	must(t, err)
	err = limits[0].Do(t.Context())
	if refuse.KindOf(err) != refuse.Cannot || !strings.Contains(err.Error(), "this kernel offers no memory.swap.max") {
		t.Errorf("got %v", err)
	}
}

func TestV2EnableAndGroup(t *testing.T) {
	h, _ := drawnV2(t)
	steps, err := groupSteps(h, "berth/other")
	must(t, err)
	e := steps[0].(*Enable)
	must(t, e.Prepare(t.Context()))
	if diff := cmp.Diff(map[string][]string{"": {"cpu", "memory", "pids"}}, e.Was); diff != "" {
		t.Error(diff)
	}
	must(t, e.Do(t.Context()))
	if got := text(t, filepath.Join(h.V2, "cgroup.subtree_control")); got != "+cpuset +hugetlb +io" {
		t.Errorf("root: %q", got)
	}
	if err := e.Verify(t.Context()); err == nil { // plain files keep the written text, not its meaning
		t.Error("Verify did not look")
	}
	must(t, os.WriteFile(filepath.Join(h.V2, "cgroup.subtree_control"), []byte("cpu memory pids cpuset hugetlb io"), 0o644))
	must(t, e.Verify(t.Context()))

	g := steps[1].(*Group)
	must(t, g.Prepare(t.Context()))
	must(t, g.Do(t.Context()))
	must(t, g.Verify(t.Context()))
	if got := text(t, filepath.Join(h.V2, "berth/cgroup.subtree_control")); got != "+cpu +cpuset +io +memory +pids" {
		t.Errorf("parent: %q", got)
	}
	must(t, g.Undo(t.Context()))
	must(t, g.Undo(t.Context()))
	if len(places(h, "berth/other")) > 0 || len(places(h, "berth/wn")) != 1 {
		t.Error("undo removed the wrong group")
	}
}

func TestV2StatsAndProcs(t *testing.T) {
	h, _ := drawnV2(t)
	want := Usage{Memory: new(int64(4096)), OOMKills: new(int64(1)), PIDs: new(int64(7)), CPU: ptr(1500 * time.Microsecond)}
	if diff := cmp.Diff(want, Stats(h, "berth/wn")); diff != "" {
		t.Error(diff)
	}
	pids, err := Procs(h, "berth/wn")
	must(t, err)
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
		if !w.holds(itoa(units * unit)) {
			t.Errorf("%s does not hold %s", itoa(units*unit), w.Value)
		}
		if w.holds(itoa((units+1)*unit)) || w.holds("max") || w.holds("9223372036854771712") {
			t.Errorf("too much holds %s", w.Value)
		}
	})
	for _, none := range []Write{{Unit: 4096, None: "-1", Value: "-1"}, {Unit: 4096, None: "max", Value: "max"}} {
		for _, got := range []string{"max", "9223372036854771712"} {
			if !none.holds(got) {
				t.Errorf("%s is no limit", got)
			}
		}
	}
}

// TestWeightsInOrder: a greater weight never gives fewer shares, and all shares are in the kernel's bounds.
func TestWeightsInOrder(t *testing.T) {
	last := int64(0)
	for w := int64(1); w <= 10000; w++ {
		s := shares(w)
		if s < last || s < minShares || s > maxShares {
			t.Fatalf("weight %d gives %d shares after %d", w, s, last)
		}
		last = s
	}
	if shares(100) != normalShares {
		t.Errorf("100 gives %d shares", shares(100))
	}
}

// FuzzDeviceLine reads any text as a file with a line for each device.
func FuzzDeviceLine(f *testing.F) {
	f.Add("8:0 rbps=1 wbps=max riops=max wiops=max\n")
	f.Add("8:0 1000\n254:0")
	f.Fuzz(func(t *testing.T, s string) {
		file := filepath.Join(t.TempDir(), "io.max")
		must(t, os.WriteFile(file, []byte(s), 0o600))
		for _, param := range []string{"", "rbps"} {
			w := Write{File: file, Device: block.Disk{Major: 8}.Number(), Param: param, Value: "1", None: "max"}
			got, err := w.effect()
			must(t, err)
			_ = (&Limit{Key: "io.data.read.rate"}).person(w, got)
		}
	})
}

func itoa(n int64) string { return strconv.FormatInt(n, 10) }
