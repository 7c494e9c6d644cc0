package limits

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"berth/test/shares"
	"berth/test/testkit"
)

const (
	points = 5 // a share may be off by that many percentage points
	loss   = 8 // and so many percent of the disk may be lost in total
	// BFQ leaves the disk idle for 8 ms (slice_idle) to wait for the next request of a node whose turn it is. Where
	// processes are kept waiting for longer than that, its shares say nothing: that many percent of waits may be so late.
	stalled = 5
	// Four readers need all of two CPUs. Where other programs take more than so many percent of them, who runs decides who reads.
	crowded = 10
)

// TestWeights: nodes have the weights that they ask for, live. Where the run measures, those that read one disk directly at queue depth 16, and 64, get what their weights say, within 5 points, and
// together at least 92 % of what one reader without a weight gets under the same scheduler. The bytes are the kernel's
// count, of all nodes over the same seconds: so many windows as were fixed before, all of them together, and nothing is
// measured again.
func TestWeights(t *testing.T) {
	mostlyWaits(t)
	w := newWorld(t, false)
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
	spec := filepath.Join(w.Dir(), "refused.yaml")
	text := fmt.Sprintf("name: refused\nimage: host\ncommand: [/bin/sleep, infinity]\nio: [{name: data, device: %s, weight: 50}]\n", w.disk)
	if err := os.WriteFile(spec, []byte(text), 0o600); err != nil {
		w.t.Fatal(err)
	}
	cmd := w.Command("apply", "-f", spec)
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
	for i, n := range names {
		w.asks(n, "io.data.weight", strconv.Itoa(weights[i]))
	}
	if !testkit.Measures() && !shares.Keeps() {
		return
	}
	n, each := shares.Windows(shares.Share)
	parts := []string{}
	row := &shares.Row{Kind: shares.Share, Seconds: each.Seconds(), Started: time.Now().UTC()}
	for _, v := range weights {
		row.Asked, parts = append(row.Asked, 100*float64(v)/float64(sum(weights))), append(parts, fmt.Sprint(v))
	}
	row.Name = fmt.Sprintf("bfq, loop device, v1, %s, depth %d", strings.Join(parts, ":"), depth)
	late, others := shares.Witness(), w.others(names)
	row.Got = w.read(depth, n, each, names...)
	row.Alone, row.Together = w.turns(depth, n, each/2, names...)
	row.Late, row.Others = late(), others()
	w.t.Logf("%s", row.Text())
	if err := row.Keep("weights-loop.json"); err != nil {
		w.t.Error(err)
	}
	wrong := row.Within(points)
	if lost, _ := row.Lost(); lost.CI95 != nil && lost.CI95[0] > loss {
		wrong = append(wrong, fmt.Sprintf("%s: %.1f %% (at least %.1f) lost", row.Name, lost.Got, lost.CI95[0]))
	}
	switch {
	case len(wrong) == 0 || shares.Keeps():
	case row.Late > stalled || row.Others > crowded:
		w.t.Skipf("needs a machine with time to spare: %.0f %% of waits of 10 ms came 8 ms late or more, other programs and the hypervisor took %.0f %% of the CPUs",
			row.Late, row.Others)
	default:
		w.t.Error(strings.Join(wrong, "\n"))
	}
}

// others begins to count what other programs than these nodes' take of all CPUs, in percent of them, and the hypervisor of a
// virtual machine for its other guests: user time, because kernel threads work for the nodes' disk, and stolen time.
func (w *world) others(names []string) (share func() float64) {
	w.t.Helper()
	field := func(path, name string, at ...int) (all float64) {
		text, err := os.ReadFile(path)
		if err != nil {
			w.t.Fatal(err)
		}
		for line := range strings.Lines(string(text)) {
			if f := strings.Fields(line); len(f) > 1 && f[0] == name {
				for _, i := range at {
					n, _ := strconv.ParseFloat(f[i], 64)
					all += n
				}
			}
		}
		return all
	}
	look := func() (user, nodes, total float64) { // ticks of 10 ms
		for _, n := range names {
			g := w.group(n)
			if v1 := filepath.Join("/sys/fs/cgroup/cpuacct", g, "cpuacct.stat"); exists(v1) {
				nodes += field(v1, "user", 1)
			} else {
				nodes += field(filepath.Join("/sys/fs/cgroup", g, "cpu.stat"), "user_usec", 1) / 1e4
			}
		}
		return field("/proc/stat", "cpu", 1, 2, 8), nodes, field("/proc/stat", "cpu", 1, 2, 3, 4, 5, 6, 7, 8)
	}
	user, nodes, all := look()
	return func() float64 {
		u, n, a := look()
		return 100 * max(0, (u-user)-(n-nodes)) / max(1, a-all)
	}
}

func exists(path string) bool { _, err := os.Stat(path); return err == nil }

func sum[N int | float64](list []N) (n N) {
	for _, v := range list {
		n += v
	}
	return n
}

// read reads the disk in nodes at the same time, and returns the bytes a second of each in n windows, by the kernel's count.
func (w *world) read(depth, n int, each time.Duration, names ...string) (got [][]float64) {
	w.t.Helper()
	groups, end := w.readers(depth, names...)
	for range n {
		got = append(got, w.window(groups, each))
	}
	end()
	return got
}

// turns reads the disk in the first node alone and in all of them by turns, because the disk's own speed drifts: n windows of each, and
// what all nodes moved in them, in bytes a second. The others are stopped meanwhile. Their shares are not looked at: in the second
// after a stop they were seen to be five points off.
func (w *world) turns(depth, n int, each time.Duration, names ...string) (alone, together []float64) {
	w.t.Helper()
	const settle = 200 * time.Millisecond
	groups, end := w.readers(depth, names...)
	for range n {
		w.signal(syscall.SIGSTOP, groups[1:])
		time.Sleep(settle)
		alone = append(alone, sum(w.window(groups, each)))
		w.signal(syscall.SIGCONT, groups[1:])
		time.Sleep(settle)
		together = append(together, sum(w.window(groups, each)))
	}
	end()
	return alone, together
}

// readers starts a reader of the disk in each node, and returns the nodes' groups when all of them read. They read until end.
func (w *world) readers(depth int, names ...string) (groups []string, end func()) {
	w.t.Helper()
	var all []*exec.Cmd
	for _, name := range names {
		c := w.Command("exec", name, "--", "fio", "--name=x", "--filename="+w.disk, "--rw=randread", "--bs=64k",
			"--direct=1", "--ioengine=libaio", fmt.Sprintf("--iodepth=%d", depth), "--thread", "--invalidate=0", "--norandommap",
			"--time_based", "--runtime=600")
		all = append(all, c)
	}
	return w.began(all, names...)
}

// began starts a command with fio in each node, and returns the nodes' groups when all of them are at work. end ends them; the
// test fails if one has ended before.
func (w *world) began(all []*exec.Cmd, names ...string) (groups []string, end func()) {
	w.t.Helper()
	for _, c := range all {
		if err := c.Start(); err != nil {
			w.t.Fatal(err)
		}
	}
	if testkit.Measures() {
		time.Sleep(1500 * time.Millisecond)
	}
	for i, name := range names {
		groups = append(groups, w.group(name))
		testkit.Eventually(w.t, "fio works in "+name, func() bool { return len(w.fios(groups[i])) > 0 })
	}
	return groups, func() {
		w.t.Helper()
		w.signal(syscall.SIGKILL, groups)
		for _, c := range all {
			_ = c.Wait() // it was killed
		}
	}
}

// window is what each group moves in a time, in bytes a second.
func (w *world) window(groups []string, each time.Duration) (moved []float64) {
	from := time.Now()
	for _, g := range groups {
		moved = append(moved, -w.servedGroup(g))
	}
	time.Sleep(each)
	took := time.Since(from).Seconds()
	for i, g := range groups {
		moved[i] = (moved[i] + w.servedGroup(g)) / took
	}
	return moved
}

// signal sends a signal to the readers in groups.
func (w *world) signal(s syscall.Signal, groups []string) {
	w.t.Helper()
	for _, g := range groups {
		sent := 0
		for _, pid := range w.fios(g) {
			if syscall.Kill(pid, s) == nil {
				sent++
			}
		}
		if sent == 0 {
			w.t.Fatalf("nobody reads in %s", g)
		}
	}
}

// fios are the processes of fio in a group.
func (w *world) fios(group string) (all []int) {
	w.t.Helper()
	list := filepath.Join("/sys/fs/cgroup/blkio", group, "cgroup.procs")
	if !exists(list) {
		list = filepath.Join("/sys/fs/cgroup", group, "node", "cgroup.procs")
	}
	text, err := os.ReadFile(list)
	if err != nil {
		w.t.Fatal(err)
	}
	for f := range strings.FieldsSeq(string(text)) {
		pid, _ := strconv.Atoi(f)
		if comm, _ := os.ReadFile(filepath.Join("/proc", f, "comm")); strings.TrimSpace(string(comm)) == "fio" {
			all = append(all, pid)
		}
	}
	return all
}

// clear takes a weight away: the node's share is the normal one again.
func (w *world) clear() {
	w.t.Helper()
	w.run("set", "a", "io.data.weight=default")
	if out := w.run("show", "--json", "a"); strings.Contains(out, "io.data.weight") {
		w.t.Errorf("the weight is still there: %s", out)
	}
}
