package cgroup

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"berth/internal/host/block"
	"berth/internal/host/group"
	"berth/internal/host/group/grouptest"
	"berth/internal/spec/vnode"
	"berth/internal/sys/proof"
	"berth/internal/sys/refuse"
	"berth/internal/sys/step"
	"berth/test/testkit"
)

func TestV2Limits(t *testing.T) {
	h, group := grouptest.Drawn(t)
	n := fullNode()
	n.Memory.High, n.Memory.Low = 3<<30, 1<<30
	limits, err := Limits(n, h, "berth/wn", testDisks())
	testkit.Must(t, err)
	var got []string
	for _, l := range limits {
		testkit.Must(t, l.Do(t.Context()))
		if err := l.Verify(t.Context()); err != nil {
			t.Error(err)
		}
		got = append(got, l.Key+" | "+l.ReadBack+" | "+l.By+" | "+grouptest.Text(t, l.Writes[0].File))
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

	// programs in the container see what they may use, in its root group
	for name, want := range map[string]string{
		"cpu.max": "150000 100000", "memory.max": "4294967296", "memory.low": "1073741824", "memory.swap.max": "1073741824", "pids.max": "4096",
	} {
		if got := grouptest.Text(t, filepath.Join(group, "node", name)); got != want {
			t.Errorf("node/%s: %s, want %s", name, got, want)
		}
	}
	for _, s := range Changes(limits, nil) {
		testkit.Must(t, s.(step.Preparer).Prepare(t.Context()))
		testkit.Must(t, s.Do(t.Context()))
		if got := grouptest.Text(t, filepath.Join(group, "node/memory.max")); s.(*Change).Of == proof.MemoryMax && got != "max" {
			t.Errorf("node/memory.max of a node without the limit: %s", got)
		}
		testkit.Must(t, s.Undo(t.Context()))
	}
	if got := grouptest.Text(t, filepath.Join(group, "node/memory.max")); got != "4294967296" {
		t.Errorf("node/memory.max, given back: %s", got)
	}

	// the kernel keeps one line for each disk
	testkit.Must(t, os.WriteFile(filepath.Join(group, "io.max"),
		[]byte("254:0 rbps=max wbps=max riops=max wiops=100\n8:0 rbps=200000000 wbps=7 riops=max wiops=max\n"), 0o644))
	shown, err := Read(limits[10:])
	testkit.Must(t, err)
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
	h, group := grouptest.Drawn(t)
	limits, err := Limits(&vnode.Node{CPU: vnode.CPU{Set: "2"}}, h, "berth/wn", nil)
	testkit.Must(t, err)
	testkit.Must(t, limits[0].Do(t.Context()))
	if err := limits[0].Verify(t.Context()); err == nil || !strings.Contains(err.Error(), "the kernel says 0-1") {
		t.Errorf("the set is not in force: %v", err)
	}
	for _, s := range Changes(limits, nil) {
		testkit.Must(t, s.Do(t.Context()))
		testkit.Must(t, s.Verify(t.Context()))
	}
	if got := grouptest.Text(t, filepath.Join(group, "cpuset.cpus")); got != "" {
		t.Errorf("cleared: %q", got)
	}
}

func TestV2LackingFile(t *testing.T) {
	h, group := grouptest.Drawn(t)
	testkit.Must(t, os.Remove(filepath.Join(group, "memory.swap.max")))
	limits, err := Limits(&vnode.Node{Memory: vnode.Memory{Swap: ptr(vnode.Bytes(0))}}, h, "berth/wn", nil)
	testkit.Must(t, err)
	err = limits[0].Do(t.Context())
	if refuse.KindOf(err) != refuse.Cannot || !strings.Contains(err.Error(), "this kernel offers no memory.swap.max") {
		t.Errorf("got %v", err)
	}
}

// FuzzDeviceLine reads any text as a file with a line for each device.
func FuzzDeviceLine(f *testing.F) {
	f.Add("8:0 rbps=1 wbps=max riops=max wiops=max\n")
	f.Add("8:0 1000\n254:0")
	f.Fuzz(func(t *testing.T, s string) {
		file := filepath.Join(t.TempDir(), "io.max")
		testkit.Must(t, os.WriteFile(file, []byte(s), 0o600))
		for _, param := range []string{"", "rbps"} {
			w := group.Write{File: file, Device: block.Disk{Major: 8}.Number(), Param: param, Value: "1", None: "max"}
			got, err := w.Effect()
			testkit.Must(t, err)
			_ = (&Limit{Of: proof.IOReadRate}).person(w, got)
		}
	})
}

// TestKindsOfLimits checks that each cgroup version has control files for all kinds of limit that it can be asked for, and
// that a kind without one is an error, never a write to a file that does not exist.
func TestKindsOfLimits(t *testing.T) {
	both := []proof.Kind{
		proof.CPUWeight, proof.CPUMax, proof.CPUSet, proof.NUMA, proof.MemoryMax, proof.MemorySwap, proof.PIDs, proof.HugePages,
		proof.IOReadRate, proof.IOReadIOPS, proof.IOWriteRate, proof.IOWriteIOPS,
	}
	for _, v := range []struct {
		name  string
		on    func(ask, func(string) string) (hold, error)
		knows []proof.Kind
	}{
		{"v1", onV1, both},
		{"v2", onV2, append([]proof.Kind{proof.MemoryHigh, proof.MemoryLow, proof.MemoryMin}, both...)},
	} {
		for _, kind := range v.knows {
			how, err := v.on(ask{kind: kind, key: string(kind)}, func(name string) string { return "/cg/" + name })
			if err != nil || len(how.writes) == 0 || how.mechanism == "" {
				t.Errorf("%s on %s: %+v, %v", kind, v.name, how, err)
			}
		}
		for _, kind := range []proof.Kind{"", "io.discard.rate", proof.NetTX} {
			if how, err := v.on(ask{kind: kind}, func(string) string { return "/cg/no" }); err == nil {
				t.Errorf("%q on %s: %+v, want an error", kind, v.name, how)
			}
		}
	}
}
