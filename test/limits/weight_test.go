package limits

import (
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

const (
	points  = 5    // a share may be off by that many percentage points
	loss    = 0.08 // and so much of the disk may be lost in total
	windows = 4    // how often a split may be measured: this machine does other things too
	// BFQ leaves the disk idle for 8 ms (slice_idle) to wait for the next request of a node whose turn it is. Where
	// processes are kept waiting for longer than that, its shares say nothing: that many percent of waits may be so late.
	stalled = 5
)

// TestWeights: nodes that read one disk directly at queue depth 16, and 64, get what their weights say, within 5 points, and
// together at least 92 % of what one reader without a weight gets under the same scheduler. The bytes are the kernel's
// count, of all nodes over the same seconds. A split that misses is measured again, up to 4 times, each time right after
// the reader alone; one window that holds is enough, or all of them together: this machine's disk does other things too.
func TestWeights(t *testing.T) {
	w := newWorld(t)
	scheduler := filepath.Join("/sys/block", filepath.Base(w.disk), "queue/scheduler")
	before, err := os.ReadFile(scheduler)
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(before), "bfq") {
		t.Skip("no BFQ in this kernel")
	}
	w.refused()
	names := []string{"a", "b", "c", "d"}
	t.Run("nodes", func(t *testing.T) {
		inner := *w
		inner.t = t
		for _, n := range names {
			inner.node(n, "io: [{name: data, device: "+w.disk+", engine: bfq}]\n")
		}
		for _, weights := range [][]int{{50, 50}, {50, 25, 25}, {40, 20, 20, 20}} {
			inner.split(names[:len(weights)], weights, 16)
		}
		inner.split(names, []int{40, 20, 20, 20}, 64)
		inner.clear()
	})
	after, err := os.ReadFile(scheduler)
	if err != nil || string(after) != string(before) {
		t.Errorf("the scheduler after the last node: %s, %v; it was %s", after, err, before)
	}
}

// refused: a weight that nothing honours is refused, and nothing is changed.
func (w *world) refused() {
	w.t.Helper()
	spec := filepath.Join(filepath.Dir(w.root), "refused.yaml")
	text := fmt.Sprintf("name: refused\nimage: host\ncommand: [/bin/sleep, infinity]\nio: [{name: data, device: %s, weight: 50}]\n", w.disk)
	if err := os.WriteFile(spec, []byte(text), 0o600); err != nil {
		w.t.Fatal(err)
	}
	cmd := exec.Command(w.berth, "--root", w.root, "apply", "-f", spec)
	out, _ := cmd.CombinedOutput()
	if cmd.ProcessState.ExitCode() != 3 || !strings.Contains(string(out), "nothing shares disk") {
		w.t.Errorf("a weight under scheduler none: exit %d, %s", cmd.ProcessState.ExitCode(), out)
	}
}

// split gives nodes weights, live, and measures what they get.
func (w *world) split(names []string, weights []int, depth int) {
	w.t.Helper()
	for i, n := range names {
		w.run("set", n, fmt.Sprintf("io.data.weight=%d", weights[i]))
	}
	if out := w.run("show", names[0]); !strings.Contains(out, "io.data.weight") || !strings.Contains(out, "bfq") {
		w.t.Errorf("show does not say what honours the weight: %s", out)
	}
	var alone float64
	all := map[string]float64{}
	for attempt := range windows {
		before := w.read(depth, "a")["a"]
		alone += before
		late := witness()
		got := w.read(depth, names...)
		stood := late()
		for n, b := range got {
			all[n] += b
		}
		off, lost, text := judge(names, weights, got, before)
		w.t.Logf("weights %v, %d in flight: %s, of %.0f MB/s alone; %.0f %% of waits late", weights, depth, text, before/1e6, stood)
		if off <= points && lost <= loss {
			return
		}
		off, lost, text = judge(names, weights, all, alone)
		switch {
		case off <= points && lost <= loss:
			w.t.Logf("all %d windows together: %s", attempt+1, text)
			return
		case attempt < windows-1:
		case stood > stalled:
			w.t.Skipf("needs a machine with time to spare: %.0f %% of waits of 10 ms came 8 ms late or more", stood)
		default:
			w.t.Errorf("weights %v, %d in flight: off by %.1f points, %.1f %% lost", weights, depth, off, 100*lost)
		}
	}
}

// judge compares what nodes got with what their weights say: by how many points the worst share is off, and how much less
// than alone they got together, as a fraction.
func judge(names []string, weights []int, got map[string]float64, alone float64) (off, lost float64, text string) {
	total := 0.0
	for _, b := range got {
		total += b
	}
	for i, n := range names {
		share := 100 * got[n] / total
		off = max(off, math.Abs(share-float64(weights[i])*100/float64(sum(weights))))
		text += fmt.Sprintf("%.1f ", share)
	}
	return off, 1 - total/alone, fmt.Sprintf("%s%%, %.0f MB/s", text, total/1e6)
}

// witness waits for 10 ms, again and again, until it is asked how many percent of its waits ended 8 ms late or more.
func witness() (late func() float64) {
	stop, said := make(chan struct{}), make(chan float64)
	go func() {
		waits, late := 0.0, 0.0
		for {
			select {
			case <-stop:
				said <- 100 * late / max(waits, 1)
				return
			default:
			}
			began := time.Now()
			time.Sleep(10 * time.Millisecond)
			waits++
			if time.Since(began) > 18*time.Millisecond {
				late++
			}
		}
	}()
	return func() float64 { close(stop); return <-said }
}

func sum(list []int) (n int) {
	for _, v := range list {
		n += v
	}
	return n
}

// read reads the disk in nodes at the same time, and returns the bytes a second of each, by the kernel's count.
func (w *world) read(depth int, names ...string) map[string]float64 {
	w.t.Helper()
	var all []*exec.Cmd
	for _, n := range names {
		c := exec.Command(w.berth, "--root", w.root, "exec", n, "--", "fio", "--name=x", "--filename="+w.disk, "--rw=randread", "--bs=64k",
			"--direct=1", "--ioengine=libaio", fmt.Sprintf("--iodepth=%d", depth), "--thread", "--invalidate=0", "--norandommap",
			"--time_based", "--runtime=6")
		if err := c.Start(); err != nil {
			w.t.Fatal(err)
		}
		all = append(all, c)
	}
	time.Sleep(1500 * time.Millisecond) // until all of them read
	before, start := map[string]float64{}, time.Now()
	for _, n := range names {
		before[n] = w.served(n)
	}
	time.Sleep(3500 * time.Millisecond)
	got, took := map[string]float64{}, time.Since(start).Seconds()
	for _, n := range names {
		got[n] = (w.served(n) - before[n]) / took
	}
	for _, c := range all {
		if err := c.Wait(); err != nil {
			w.t.Fatalf("fio in a node: %v", err)
		}
	}
	return got
}

// clear takes a weight away: the node's share is the normal one again.
func (w *world) clear() {
	w.t.Helper()
	w.run("set", "a", "io.data.weight=default")
	if out := w.run("show", "--json", "a"); strings.Contains(out, "io.data.weight") {
		w.t.Errorf("the weight is still there: %s", out)
	}
}
