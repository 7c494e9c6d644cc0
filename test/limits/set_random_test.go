package limits

import (
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"berth/internal/host"
	"berth/internal/node"
	"berth/internal/spec"
	"berth/internal/spec/vnode"
	"berth/test/sample"
)

// setters is how many processes call berth set at a time, and calls how often in all at most.
const (
	setters = 8
	calls   = 1000
)

// The keys of the node. Each of the first has one process that sets it: what that set last must be there at the end,
// whatever the others did to the same spec meanwhile. The others are set by all.
var (
	ownKeys = [setters]string{
		"cpu.weight", "memory.max", "io.data.read.rate", "io.data.write.rate",
		"io.data.read.iops", "io.data.write.iops", "net.eth0.tx", "net.eth0.rx",
	}
	sharedKeys = []string{"cpu.max", "pids", "net.eth1.tx"}
)

// call is one call of berth set that succeeded.
type call struct {
	values       map[string]string
	begun, ended time.Time
}

// TestSetByManyAtOnce: up to 1,000 random calls of berth set by 8 processes on one node. At the end the kernel, berth show and
// the spec agree on every key; each key has the value of a call after which no other set it: no update is lost. A call
// that was refused for one of its keys has changed none.
func TestSetByManyAtOnce(t *testing.T) {
	mostlyWaits(t)
	w := newWorld(t, true)
	w.node("many", "pids: 64\nio: [{name: data, device: "+w.disk+"}]\nnetwork: [{mode: bridge}, {mode: bridge}]\n")
	var wg sync.WaitGroup
	done := make([][]call, setters)
	start := time.Now()
	dice := sample.Of(t)
	each, seeds := dice.Rounds(calls)/setters, make([]uint64, setters)
	for i := range setters {
		seeds[i] = dice.Uint64()
	}
	for i := range setters {
		wg.Go(func() { done[i] = w.setter(i, each, seeds[i]) })
	}
	wg.Wait()
	t.Logf("%d calls by %d processes in %.1f s", each*setters, setters, time.Since(start).Seconds())
	if t.Failed() {
		return
	}
	end := w.agreed()
	for i, key := range ownKeys {
		if last := lastOf(done[i], key); end[key] != last {
			t.Errorf("%s is %s at the end; its only setter set it to %s last", key, end[key], last)
		}
	}
	for _, key := range sharedKeys {
		if !possible(done, key, end[key]) {
			t.Errorf("%s is %s at the end, which a later call had changed", key, end[key])
		}
	}
	if out := w.run("repair"); out != "nothing to repair\n" {
		t.Errorf("berth repair afterwards: %s", out)
	}
}

// setter is one process of many: it sets its own key and the shared ones to random values.
func (w *world) setter(i, calls int, seed uint64) []call {
	random := rand.New(rand.NewPCG(seed, 4)) //nolint:gosec // numbers that come again, not secrets
	var done []call
	for n := range calls {
		c := call{values: map[string]string{}, begun: time.Now()}
		own := ownKeys[i]
		c.values[own] = randomValue(random, own)
		if random.IntN(2) == 0 {
			shared := sharedKeys[random.IntN(len(sharedKeys))]
			c.values[shared] = randomValue(random, shared)
		}
		wrong, code := "", 0
		switch n % 10 {
		case 3:
			wrong, code = "frob=1", 2
		case 7:
			wrong, code = "cpu.set=8000", 3
		}
		args := []string{"set", "many"}
		for k, v := range c.values {
			args = append(args, k+"="+v)
		}
		if wrong != "" {
			args = append(args, wrong)
		}
		out, err := w.Command(args...).CombinedOutput()
		c.ended = time.Now()
		if got := exitCode(err); got != code {
			w.t.Errorf("berth %s: exit code %d, want %d: %s", strings.Join(args, " "), got, code, out)
			return done
		}
		if code == 0 {
			done = append(done, c)
		}
	}
	return done
}

func exitCode(err error) int {
	if ended, ok := errors.AsType[*exec.ExitError](err); ok {
		return ended.ExitCode()
	}
	if err != nil {
		return -1
	}
	return 0
}

// randomValue returns an allowed value for a key; one in eight clears the limit.
func randomValue(random *rand.Rand, key string) string {
	n := random.IntN(90) + 10
	if random.IntN(8) == 0 {
		return vnode.Max
	}
	switch {
	case key == "cpu.max":
		return fmt.Sprintf("0.%d", n)
	case key == "memory.max":
		return fmt.Sprintf("%dMiB", n+100)
	case strings.HasSuffix(key, ".rate"):
		return fmt.Sprintf("%dMB/s", n)
	case strings.HasPrefix(key, "net."):
		return fmt.Sprintf("%dMbit/s", n)
	}
	return strconv.Itoa(n * 3)
}

// lastOf returns the value to which the last call in done set the key, in canonical form; max if it was cleared or never set.
func lastOf(done []call, key string) string {
	last := vnode.Max
	for _, c := range done {
		if v, ok := c.values[key]; ok {
			last = canonical(key, v)
		}
	}
	return last
}

// canonical returns a value in the form that a spec has: 0.5 for 0.50.
func canonical(key, value string) string {
	n := &vnode.Node{IO: []vnode.IO{{Name: "data"}}, Network: []vnode.Network{{}, {}}}
	vnode.Defaults(n)
	n.PIDs = 0
	if value == vnode.Max || vnode.Change(n, key, value) != nil {
		return value
	}
	for _, s := range vnode.Limits(n) {
		if s.Key == key {
			return s.Value
		}
	}
	return value
}

// possible reports whether a call set the key to this value and no later call set the key. Calls that overlap are not later.
func possible(done [][]call, key, value string) bool {
	var all []call
	for _, some := range done {
		for _, c := range some {
			if _, ok := c.values[key]; ok {
				all = append(all, c)
			}
		}
	}
	for _, c := range all {
		if canonical(key, c.values[key]) != value {
			continue
		}
		later := false
		for _, o := range all {
			later = later || o.begun.After(c.ended)
		}
		if !later {
			return true
		}
	}
	return false
}

// agreed checks that spec, berth show and the kernel agree, and returns the final value of each key.
func (w *world) agreed() map[string]string {
	w.t.Helper()
	nodes, err := spec.Parse("show --spec", []byte(w.run("show", "many", "--spec")))
	if err != nil || len(nodes) != 1 {
		w.t.Fatalf("read the spec: %v", err)
	}
	end := map[string]string{}
	for _, key := range append(ownKeys[:], sharedKeys...) {
		end[key] = vnode.Max
	}
	for _, s := range vnode.Limits(nodes[0]) {
		end[s.Key] = s.Value
	}
	var detail node.Detail
	if err := json.Unmarshal([]byte(w.run("show", "many", "--json")), &detail); err != nil {
		w.t.Fatal(err)
	}
	shown := map[string]string{}
	for _, l := range detail.Limits {
		if !l.Holds {
			w.t.Errorf("berth show: %s asked %s, read back %s", l.Key, l.Asked, l.ReadBack)
		}
		shown[l.Key] = l.Asked
	}
	for key, value := range end {
		if shown[key] != value && (value != vnode.Max || shown[key] != "") {
			w.t.Errorf("%s: the spec has %s, berth show %q", key, value, shown[key])
		}
	}
	w.kernelAgrees(nodes[0], detail.Cgroup)
	return end
}

// kernelAgrees compares the node's control files, read without Berth, with its spec. For network rates the test relies on
// what berth show reads back from the kernel.
func (w *world) kernelAgrees(n *vnode.Node, group string) {
	w.t.Helper()
	cg, err := host.ReadCgroups("/proc")
	if err != nil {
		w.t.Fatal(err)
	}
	if cg.Has("memory") != "v1" || cg.Has("blkio") != "v1" || cg.Has("cpu") != "v1" || cg.Has("pids") != "v1" {
		w.t.Log("no v1 control files here: the kernel's values are those that berth show read back")
		return
	}
	quota, weight, pids, memory := int64(-1), int64(1024), "max", int64(9223372036854771712)
	if n.CPU.Max != 0 {
		quota = int64(n.CPU.Max) * 100
	}
	if n.CPU.Weight != 0 {
		weight = int64(n.CPU.Weight) * 1024 / 100
	}
	if n.PIDs != 0 {
		pids = strconv.Itoa(n.PIDs)
	}
	if n.Memory.Max != 0 {
		memory = int64(n.Memory.Max)
	}
	for file, want := range map[string]string{
		filepath.Join(cg.V1["cpu"], group, "cpu.cfs_quota_us"):                   strconv.FormatInt(quota, 10),
		filepath.Join(cg.V1["cpu"], group, "cpu.shares"):                         strconv.FormatInt(weight, 10),
		filepath.Join(cg.V1["pids"], group, "pids.max"):                          pids,
		filepath.Join(cg.V1["memory"], group, "memory.limit_in_bytes"):           strconv.FormatInt(memory, 10),
		filepath.Join(cg.V1["blkio"], group, "blkio.throttle.read_bps_device"):   w.throttle(int64(n.IO[0].Read.Rate)),
		filepath.Join(cg.V1["blkio"], group, "blkio.throttle.write_bps_device"):  w.throttle(int64(n.IO[0].Write.Rate)),
		filepath.Join(cg.V1["blkio"], group, "blkio.throttle.read_iops_device"):  w.throttle(int64(n.IO[0].Read.IOPS)),
		filepath.Join(cg.V1["blkio"], group, "blkio.throttle.write_iops_device"): w.throttle(int64(n.IO[0].Write.IOPS)),
	} {
		got, err := os.ReadFile(file)
		if err != nil || strings.TrimSpace(string(got)) != want {
			w.t.Errorf("%s is %q, the spec wants %q (%v)", file, got, want, err)
		}
	}
}

// throttle returns the expected content of a throttle file: one rule, or nothing for limit 0.
func (w *world) throttle(limit int64) string {
	if limit == 0 {
		return ""
	}
	return w.diskNumber + " " + strconv.FormatInt(limit, 10)
}
