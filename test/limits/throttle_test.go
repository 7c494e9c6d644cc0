// Package limits measures on this host's kernel that limits are enforced, not only that they are set.
package limits

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"berth/internal/bench/stat"
	"berth/test/env"
	"berth/test/testkit"
)

const within = 0.02

// capMB is the throttle in MB/s: less where the run does not measure, so that a busy machine can do more than half of it.
func capMB() float64 {
	if testkit.Measures() {
		return 10
	}
	return 4
}

// throttled are the keys of an io entry for both directions.
func throttled() string {
	return fmt.Sprintf("read: {rate: %gMB/s}, write: {rate: %[1]gMB/s}", capMB())
}

// world is a berth with its own root, and a loop device that the nodes share.
type world struct {
	env.Berth
	t                *testing.T
	disk, diskNumber string
}

// mostlyWaits has a test run beside others of its kind, unless the run measures.
func mostlyWaits(t *testing.T) {
	if !testkit.Measures() {
		t.Parallel()
	}
}

// memory is a folder that is in memory.
const memory = "/dev/shm"

// newWorld makes a world. Its disk is in memory where that can be, or a file of /var/tmp: a disk of a shared machine stands still
// for up to seconds at times, and what a limit allows meanwhile is lost, which is not the limit's fault.
func newWorld(t *testing.T, inMemory bool) *world {
	t.Helper()
	if testing.Short() {
		t.Skip("needs a longer run: a minute of throttled I/O")
	}
	testkit.NeedsRoot(t)
	for _, tool := range []string{"fio", "losetup"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skipf("needs %s", tool)
		}
	}
	w := &world{t: t, Berth: env.New(t, "/var/tmp")} // other folders may lie on a tmpfs
	if !inMemory || !w.loop(memory) {
		if !w.loop(w.Dir()) {
			t.Skip("needs a free loop device")
		}
	}
	return w
}

// loop makes a loop device that reads and writes a file in a folder directly, and says whether that could be.
func (w *world) loop(folder string) bool {
	w.t.Helper()
	file := filepath.Join(folder, filepath.Base(w.Dir())+".disk")
	w.t.Cleanup(func() { _ = os.Remove(file) })
	if out, err := exec.Command("fio", "--name=fill", "--filename="+file, "--rw=write", "--bs=1M", "--size=256M", "--thread").CombinedOutput(); err != nil {
		if folder != memory {
			w.t.Fatalf("fill the disk %s: %v: %s", file, err, out)
		}
		w.t.Logf("fill the disk %s: %v: %s", file, err, out)
		return false
	}
	out, err := exec.Command("losetup", "--find", "--show", "--direct-io=on", file).CombinedOutput()
	if err != nil {
		w.t.Logf("%s as a disk: %v: %s", file, err, out)
		return false
	}
	w.disk = strings.TrimSpace(string(out))
	w.t.Cleanup(func() { _ = exec.Command("losetup", "--detach", w.disk).Run() })
	number, err := os.ReadFile(filepath.Join("/sys/block", filepath.Base(w.disk), "dev"))
	if err != nil {
		w.t.Fatal(err)
	}
	w.diskNumber = strings.TrimSpace(string(number))
	return true
}

func (w *world) run(args ...string) string {
	w.t.Helper()
	out, err := w.Command(args...).CombinedOutput()
	if err != nil {
		w.t.Fatalf("berth %s: %v: %s", strings.Join(args, " "), err, out)
	}
	return string(out)
}

func (w *world) node(name, limit string) {
	w.t.Helper()
	spec := filepath.Join(w.Dir(), name+".yaml")
	text := fmt.Sprintf("name: %s\nimage: host\ncommand: [/bin/sleep, infinity]\ndevices: [%s]\n%s", name, w.disk, limit)
	if err := os.WriteFile(spec, []byte(text), 0o600); err != nil {
		w.t.Fatal(err)
	}
	w.run("apply", "-f", spec)
	w.t.Cleanup(func() { w.run("rm", "--force", name) })
}

// fio reads or writes the disk directly in a node, and returns its bytes per second. more are further options of fio.
func (w *world) fio(node, rw, block string, seconds int, more ...string) float64 {
	w.t.Helper()
	cmd := w.fioCommand(node, rw, block, seconds)
	cmd.Args = append(cmd.Args, more...)
	out, err := cmd.Output()
	if err != nil {
		w.t.Fatalf("fio in %s: %v: %s", node, err, out)
	}
	var result struct {
		Jobs []struct {
			Read, Write struct {
				BwBytes float64 `json:"bw_bytes"`
			}
		}
	}
	if err := json.Unmarshal(out, &result); err != nil || len(result.Jobs) != 1 {
		w.t.Fatalf("fio in %s said %q: %v", node, out, err)
	}
	return result.Jobs[0].Read.BwBytes + result.Jobs[0].Write.BwBytes
}

func (w *world) fioCommand(node, rw, block string, seconds int) *exec.Cmd {
	return w.Command("exec", node, "--", "fio", "--name=x", "--filename="+w.disk, "--rw="+rw,
		"--bs="+block, "--direct=1", "--ioengine=psync", "--thread", "--invalidate=0", "--time_based", "--runtime="+strconv.Itoa(seconds),
		"--output-format=json")
}

// seconds is how long fio works where a run measures, and where it does not: then the first slice of the throttle, 0.1 s, is 2.5 % of it.
func seconds() int {
	if testkit.Measures() {
		return 10
	}
	return 4
}

// TestThrottle checks that a throttle holds for direct reads and writes, alone and beside nodes without a limit. A
// throttle that is changed while the node reads takes effect. Where the run measures, the rate is within 2 % over 10 s, also beside four nodes.
func TestThrottle(t *testing.T) {
	mostlyWaits(t)
	w := newWorld(t, true)
	w.cappedAndFree()
	for _, key := range []string{"io.data.read.rate", "io.data.write.rate"} {
		w.asks("capped", key, fmt.Sprintf("%gMB/s", capMB()))
	}
	for _, tc := range []struct{ rw, block string }{{"read", "64k"}, {"randwrite", "64k"}} {
		if !testkit.Measures() {
			break // competitors reads and writes, too
		}
		got := w.fio("capped", tc.rw, tc.block, seconds())
		testkit.Rate(t, fmt.Sprintf("MB/s, %s of %s", tc.rw, tc.block), got/1e6, capMB(), within)
	}
	w.competitors()
	w.liveChange()
}

// TestMeasured runs the tests that stay in each run where their figures count: make test-measured.
func TestMeasured(t *testing.T) {
	t.Run("throttle", TestThrottle)
	t.Run("helper", TestHelperSharesTheLimit)
	t.Run("set", TestSetTakesEffectWithinASecond)
	t.Run("weights", TestWeights)
}

// asks compares a limit of a node as the kernel has it with what was asked for.
func (w *world) asks(node, key, want string) {
	w.t.Helper()
	var shown struct {
		Limits []struct {
			Key      string `json:"key"`
			ReadBack string `json:"read_back"`
		}
	}
	if err := json.Unmarshal([]byte(w.run("show", "--json", node)), &shown); err != nil {
		w.t.Fatal(err)
	}
	for _, l := range shown.Limits {
		if l.Key == key {
			if l.ReadBack != want {
				w.t.Errorf("%s of %s is %s in the kernel, asked for %s", key, node, l.ReadBack, want)
			}
			return
		}
	}
	w.t.Errorf("%s has no %s: %+v", node, key, shown.Limits)
}

// TestNeighbour checks that a node without a limit, beside one with a throttle, keeps at least 90 % of the disk's speed less the
// throttle.
func TestNeighbour(t *testing.T) {
	w := newWorld(t, false)
	w.cappedAndFree()
	w.neighbour()
}

// cappedAndFree makes a node with a throttle, and one without.
func (w *world) cappedAndFree() {
	w.t.Helper()
	w.node("capped", "io: [{name: data, device: "+w.disk+", "+throttled()+"}]\n")
	w.node("free", "")
}

// competitors measures the throttled node while one to four nodes without a limit read the same disk.
func (w *world) competitors() {
	w.t.Helper()
	free := []string{"free"}
	// One small request at a time would not always ask for 10 MB/s: each waits behind those of the others. Many large ones in flight would
	// be seen in the sum.
	cases := []struct{ rw, block, depth string }{{"randread", "128k", "1"}, {"randwrite", "1M", "1"}, {"randread", "4k", "8"}, {"randwrite", "16k", "8"}}
	if !testkit.Measures() {
		cases = cases[:2]
	}
	for i, tc := range cases {
		if i > 0 && testkit.Measures() {
			free = append(free, fmt.Sprint("free", i+1))
			w.node(free[i], "")
		}
		var others []*exec.Cmd
		for _, n := range free {
			other := w.fioCommand(n, "randread", "64k", seconds()+2)
			if err := other.Start(); err != nil {
				w.t.Fatal(err)
			}
			others = append(others, other)
		}
		time.Sleep(time.Second)
		got := w.fio("capped", tc.rw, tc.block, seconds(), "--ioengine=libaio", "--iodepth="+tc.depth)
		for _, other := range others {
			if err := other.Wait(); err != nil {
				w.t.Fatal(err)
			}
		}
		testkit.Rate(w.t, fmt.Sprintf("MB/s, %s of %s beside %d nodes", tc.rw, tc.block, len(free)), got/1e6, capMB(), within)
	}
}

// neighbour measures the free node alone and beside the capped one by turns, because the disk's own speed drifts: the capped one
// is stopped meanwhile. It takes stat.MinPairs pairs of windows, the fewest that give an interval, and measures none again. Small
// blocks are left out: there the nodes compete for the CPUs, not for the disk.
func (w *world) neighbour() {
	for _, load := range []struct{ rw, block string }{{"randread", "1M"}, {"randread", "64k"}, {"randwrite", "1M"}} {
		const each, settle = time.Second, 500 * time.Millisecond
		groups, end := w.began([]*exec.Cmd{
			w.fioCommand("free", load.rw, load.block, 600), w.fioCommand("capped", load.rw, "64k", 600),
		}, "free", "capped")
		var kept []float64
		moved := 0.
		for range stat.MinPairs {
			w.signal(syscall.SIGSTOP, groups[1:])
			time.Sleep(settle)
			alone := w.window(groups[:1], each)[0]
			w.signal(syscall.SIGCONT, groups[1:])
			time.Sleep(settle)
			beside := w.window(groups, each)
			kept, moved = append(kept, beside[0]/(alone-capMB()*1e6)), moved+beside[1]
		}
		if moved /= stat.MinPairs; moved < capMB()*1e5 {
			w.t.Errorf("the node with a limit moves %.1f MB/s only: nothing is shown", moved/1e6)
		}
		end()
		all := stat.SerialEstimate(kept)
		part, ci := all.Center, all.I95
		w.t.Logf("the node without a limit, %s, blocks of %s: %.2f (%.2f..%.2f) of what it has alone, less the cap", load.rw, load.block, part, ci.Lo, ci.Hi)
		if ci.Hi < 0.9 {
			w.t.Errorf("the node without a limit lost too much: %s, blocks of %s: it keeps %.2f, at most %.2f", load.rw, load.block, part, ci.Hi)
		}
	}
}

// liveChange raises the throttle of a node that is reading, and judges its rate by the kernel's byte counter. A window counts from the
// moment at which a rate begins: what a busy machine misses within it is caught up. Where the run measures, it begins later.
func (w *world) liveChange() {
	start, before := time.Now(), w.served("capped")
	_, end := w.began([]*exec.Cmd{w.fioCommand("capped", "randread", "64k", 600)}, "capped")
	defer end()
	raised := 2.5 * capMB()
	for _, want := range []float64{capMB(), raised} {
		if want != capMB() {
			start, before = time.Now(), w.served("capped")
			w.t.Log(strings.TrimSpace(w.run("set", "capped", fmt.Sprintf("io.data.read.rate=%gMB/s", raised))))
			w.asks("capped", "io.data.read.rate", fmt.Sprintf("%gMB/s", raised))
		}
		if testkit.Measures() {
			time.Sleep(time.Second)
			start, before = time.Now(), w.served("capped")
		}
		time.Sleep(time.Duration(seconds()) * time.Second)
		got := (w.served("capped") - before) / time.Since(start).Seconds()
		testkit.Rate(w.t, "MB/s counted by the kernel", got/1e6, want, 0.03) // the throttle works in slices of 0.1 s, which are 2.5 % of this window
	}
}

// group returns the node's cgroup path from berth show.
func (w *world) group(node string) string {
	w.t.Helper()
	var shown struct{ Cgroup string }
	if err := json.Unmarshal([]byte(w.run("show", "--json", node)), &shown); err != nil {
		w.t.Fatal(err)
	}
	return shown.Cgroup
}

// served returns the number of bytes that the kernel counts for the node on the disk.
func (w *world) served(node string) float64 { return w.servedGroup(w.group(node)) }

func (w *world) servedGroup(group string) float64 {
	w.t.Helper()
	v1 := filepath.Join("/sys/fs/cgroup/blkio", group, "blkio.throttle.io_service_bytes")
	if text, err := os.ReadFile(v1); err == nil {
		for line := range strings.Lines(string(text)) {
			if f := strings.Fields(line); len(f) == 3 && f[0] == w.diskNumber && f[1] == "Total" {
				n, _ := strconv.ParseFloat(f[2], 64)
				return n
			}
		}
		return 0
	}
	text, err := os.ReadFile(filepath.Join("/sys/fs/cgroup", group, "io.stat"))
	if err != nil {
		w.t.Fatal(err)
	}
	sum := 0.0
	for line := range strings.Lines(string(text)) {
		f := strings.Fields(line)
		if len(f) == 0 || f[0] != w.diskNumber {
			continue
		}
		for _, kv := range f[1:] {
			if v, ok := strings.CutPrefix(kv, "rbytes="); ok {
				n, _ := strconv.ParseFloat(v, 64)
				sum += n
			}
		}
	}
	return sum
}
