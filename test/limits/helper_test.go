package limits

import (
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"berth/internal/host"
	"berth/internal/host/counters"
	"berth/internal/host/group"
	"berth/internal/sys/fork"
	"berth/test/testkit"
)

// TestHelperSharesTheLimit writes a disk in a node and in a helper of it at once, and reads it where the run measures. The rate of both together, by the
// kernel's count, is the node's limit. Stopping the node ends the helper.
func TestHelperSharesTheLimit(t *testing.T) {
	mostlyWaits(t)
	w := newWorld(t, true)
	cg, err := host.ReadCgroups("/proc")
	if err != nil {
		t.Fatal(err)
	}
	w.node("served", "io: [{name: data, device: "+w.disk+", "+throttled()+"}]\n")
	node := w.group("served")
	warm, measured := time.Second, 8*time.Second
	if !testkit.Measures() { // from the first byte: what a busy machine misses is caught up
		warm, measured = 0, 4*time.Second
	}
	for _, rw := range []string{"randwrite", "randread"} {
		inside := w.fioCommand("served", rw, "64k", int((warm+measured).Seconds())+3)
		args := inside.Args
		helper := exec.Command("fio", args[1+slices.Index(args, "fio"):]...) // the same I/O, from outside the container
		start, counted := time.Now(), w.bytes(cg, node)
		if err := inside.Start(); err != nil {
			t.Fatal(err)
		}
		if err := group.StartHelper(cg, node, helper); err != nil {
			t.Fatal(err)
		}
		testkit.Eventually(t, "something is moved", func() bool {
			now, is := time.Now(), w.bytes(cg, node)
			if is == counted {
				start = now
			}
			return is != counted
		})
		time.Sleep(warm)
		began, before, helped := time.Now(), w.bytes(cg, node), w.processBytes(helper.Process.Pid, rw)
		if !testkit.Measures() {
			began, before, helped = start, counted, 0
		}
		time.Sleep(measured)
		moved, part := w.bytes(cg, node)-before, w.processBytes(helper.Process.Pid, rw)-helped
		past := time.Since(began).Seconds() // read last: a pause before it does not make the rate greater
		sum, own := float64(moved)/past, float64(part)/past
		t.Logf("%s: %.3f MB/s together, %.3f of them the helper", rw, sum/1e6, own/1e6)
		testkit.Rate(t, rw+": MB/s of node and helper together", sum/1e6, capMB(), within)
		least := 0.
		if testkit.Measures() {
			least = capMB() * 1e5
		}
		if own <= least || own > sum-least {
			t.Errorf("%s: the helper alone had %.3f MB/s of %.3f: one of the two did next to nothing", rw, own/1e6, sum/1e6)
		}
		if err := inside.Wait(); err != nil {
			t.Error(err)
		}
		if err := fork.Wait(helper); err != nil {
			t.Error(err)
		}
		if !testkit.Measures() {
			break
		}
	}

	stays := exec.Command("sleep", "1000")
	if err := group.StartHelper(cg, node, stays); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- fork.Wait(stays) }()
	w.run("stop", "served")
	select {
	case <-ended:
	case <-time.After(testkit.Bound()):
		t.Error("the helper outlives its node")
		_ = stays.Process.Kill()
	}
}

// bytes returns what the kernel has counted for a group on the disk.
func (w *world) bytes(cg host.Cgroups, group string) int64 {
	w.t.Helper()
	c, ok := counters.NewMeter(cg, true).Read(group)
	if !ok {
		w.t.Fatalf("no group %s", group)
	}
	for _, d := range c.Disks {
		if fmt.Sprintf("%d:%d", d.Major, d.Minor) == w.diskNumber {
			return d.ReadBytes + d.WriteBytes
		}
	}
	return 0
}

// processBytes returns how many bytes a process has read from disks, or written to them, so far.
func (w *world) processBytes(pid int, rw string) int64 {
	w.t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/io", pid))
	if err != nil {
		w.t.Fatal(err)
	}
	name := strings.TrimPrefix(rw, "rand") + "_bytes: "
	for line := range strings.Lines(string(text)) {
		if n, ok := strings.CutPrefix(strings.TrimSpace(line), name); ok {
			count, err := strconv.ParseInt(n, 10, 64)
			if err != nil {
				w.t.Fatal(err)
			}
			return count
		}
	}
	w.t.Fatalf("no %s in %s", name, text)
	return 0
}
