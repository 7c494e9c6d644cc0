package limits

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"berth/internal/host"
	"berth/internal/sys/proc"
	"berth/test/env"
	"berth/test/loop"
	"berth/test/testkit"
)

// drifted is a node with a limit of each kind that another program can take from it by hand.
const drifted = `name: NAME
image: host
class: storage
oom_score_adj: 10
command: [/bin/sh, -c, "sleep 100000 & while :; do sleep 100000; done"]
cpu: {max: 0.5, weight: 50, set: "0"}
memory: {max: 256MiB}
pids: 64
rlimits: {nofile: 1000}
sysctls: {net.core.somaxconn: 128}
devices: [DISK]
io: [{name: data, device: DISK, weight: 200, engine: bfq, read: {rate: 50MB/s, iops: 500}, write: {rate: 20MB/s, iops: 200}}]
network: [{name: eth0, mode: bridge, rate: {tx: 10Mbit/s, rx: 20Mbit/s}}]
`

// lab is a node whose limits the test changes behind Berth's back, on cgroup v1.
type lab struct {
	env.Berth
	t           *testing.T
	name, spec  string
	cg          host.Cgroups
	group, disk string
}

// TestDriftIsSeenAndMended changes each limit of a running node by hand, as another program may. show, ls and plan see it and
// change nothing; apply, set and repair write it again, and afterwards all three say that nothing is left to do.
func TestDriftIsSeenAndMended(t *testing.T) {
	mostlyWaits(t)
	l := newLab(t)
	file := func(controller, name string) string { return filepath.Join(l.cg.V1[controller], l.group, name) }
	write := func(controller, name, text string) func() {
		return func() { l.write(file(controller, name), text) }
	}
	none := l.disk + " 0"
	top := func(pid int) {
		for _, c := range []string{"cpu", "memory", "pids", "blkio"} {
			l.write(filepath.Join(l.cg.V1[c], "cgroup.procs"), strconv.Itoa(pid))
		}
	}
	values := []struct {
		key  string // as ls and plan name it
		set  string // the change of berth set that gives it back; "": apply and repair alone do
		take func()
	}{
		{"cpu.max", "cpu.max=0.5", write("cpu", "cpu.cfs_quota_us", "-1")},
		{"cpu.weight", "cpu.weight=50", write("cpu", "cpu.shares", "1024")},
		{"cpu.set", "cpu.set=0", write("cpuset", "cpuset.cpus", "0-1")},
		{"memory.max", "memory.max=256MiB", write("memory", "memory.limit_in_bytes", "-1")},
		{"pids", "pids=64", write("pids", "pids.max", "max")},
		{"io.data.read.rate", "io.data.read.rate=50MB/s", write("blkio", "blkio.throttle.read_bps_device", none)},
		{"io.data.read.iops", "io.data.read.iops=500", write("blkio", "blkio.throttle.read_iops_device", none)},
		{"io.data.write.rate", "io.data.write.rate=20MB/s", write("blkio", "blkio.throttle.write_bps_device", none)},
		{"io.data.write.iops", "io.data.write.iops=200", write("blkio", "blkio.throttle.write_iops_device", none)},
		{"net.eth0.tx", "net.eth0.tx=10Mbit/s", func() {
			l.must(exec.Command("nsenter", "-t", strconv.Itoa(l.first()), "-n", "tc", "qdisc", "replace", "dev", "eth0", "root", "pfifo"))
		}},
		{"net.eth0.spoof", "", func() {
			l.must(exec.Command("nsenter", "--net="+filepath.Join(l.Root, "run/bridge"), "sh", "-ec", "for d in $(tc qdisc | sed -n 's/.* clsact .* dev \\([^ ]*\\) .*/\\1/p'); do tc qdisc del dev $d clsact; done"))
		}},
		{"sysctls.net.core.somaxconn", "", func() {
			l.must(exec.Command("nsenter", "-t", strconv.Itoa(l.first()), "-n", "sh", "-c", "echo 4096 >/proc/sys/net/core/somaxconn"))
		}},
		{"io.data.weight", "io.data.weight=200", func() { l.write("/sys/dev/block/"+l.disk+"/queue/scheduler", "none") }},
		{"devices", "", write("devices", "devices.allow", "c 10:229 rwm")},
		{"class", "", func() { l.write(filepath.Join(l.cg.V1["cpu"], filepath.Dir(l.group), "cpu.shares"), "1024") }},
	}
	for _, mend := range []string{"apply", "set", "repair"} {
		t.Run("values/"+mend, func(t *testing.T) {
			l.t = t
			var keys []string
			args := map[string][]string{"apply": {"apply", "-f", l.spec}, "set": {"set", l.name}, "repair": {"repair"}}[mend]
			for _, v := range values {
				if mend == "set" && v.set == "" {
					continue
				}
				v.take()
				if keys = append(keys, v.key); mend == "set" {
					args = append(args, v.set)
				}
			}
			l.mended(keys, args...)
		})
	}
	for name, tc := range map[string]struct {
		take func()
		mend []string
	}{
		"process 1":                 {func() { top(l.first()) }, []string{"set", l.name, "pids=64"}},
		"a child":                   {func() { top(proc.Family(l.first())[1]) }, []string{"apply", "-f", l.spec}},
		"groups are made anew":      {l.anew, []string{"repair"}},
		"groups are made anew, set": {l.anew, []string{"set", l.name, "pids=64"}},
		"groups are made anew, with the processes in them": {func() {
			l.anew()
			for _, pid := range proc.Family(l.first()) {
				l.write(filepath.Join(l.cg.V1["cpu"], l.group, "cgroup.procs"), strconv.Itoa(pid))
			}
		}, []string{"apply", "-f", l.spec}},
	} {
		t.Run("processes/"+name, func(t *testing.T) {
			l.t = t
			tc.take()
			l.mended([]string{"processes"}, tc.mend...)
		})
	}
	t.Run("exec", func(t *testing.T) { // a command lands where process 1 is
		l.t = t
		top(l.first())
		l.run(0, "set", l.name, "cpu.max=0.5")
		l.run(0, "exec", l.name, "--", "cmp", "/proc/self/cgroup", "/proc/1/cgroup")
	})
	t.Run("rlimits", func(t *testing.T) { // a process may lower its own: only who names it gets it again
		l.t = t
		l.must(exec.Command("prlimit", "--pid", strconv.Itoa(l.first()), "--nofile=100:100"))
		if out := l.run(0, "repair"); strings.Contains(out, "rlimits") {
			t.Errorf("repair: %s", out)
		}
		f, err := host.ReadFacts()
		if err != nil {
			t.Fatal(err)
		}
		if !f.SysRes {
			l.run(3, "set", l.name, "rlimits.nofile=1000") // nobody here can raise it
			return
		}
		l.run(0, "set", l.name, "rlimits.nofile=1000")
		l.seen(false)
	})
	t.Run("max", func(t *testing.T) { // a limit that the spec has not, and somebody else has set
		l.t = t
		l.run(0, "set", l.name, "pids=max", "cpu.max=max")
		l.write(file("pids", "pids.max"), "7")
		l.write(file("cpu", "cpu.cfs_quota_us"), "20000")
		l.run(0, "set", l.name, "pids=max", "cpu.max=max")
		if got := l.read(file("pids", "pids.max")) + " " + l.read(file("cpu", "cpu.cfs_quota_us")); got != "max -1" {
			t.Errorf("pids.max and the quota after set to max: %s", got)
		}
	})
}

// mended checks that show, ls and plan see what is lost and change nothing, and that nothing is lost after this command.
func (l *lab) mended(keys []string, args ...string) {
	l.t.Helper()
	before := l.seen(true, keys...)
	lines := func(ls string) (all []string) {
		for line := range strings.Lines(ls) {
			if strings.HasPrefix(line, l.name+": ") {
				all = append(all, line)
			}
		}
		return all
	}
	if again := l.run(0, "ls"); !slices.Equal(lines(again), lines(before)) {
		l.t.Errorf("seen first:\n%s\nand then:\n%s", before, again)
	}
	l.run(0, args...)
	l.seen(false)
}

// anew removes the node's groups, and makes others in the places of some.
func (l *lab) anew() {
	l.t.Helper()
	for _, c := range []string{"cpu", "memory", "pids", "blkio"} {
		dir := filepath.Join(l.cg.V1[c], l.group)
		for _, pid := range proc.Family(l.first()) {
			l.write(filepath.Join(l.cg.V1[c], "cgroup.procs"), strconv.Itoa(pid))
		}
		err := unix.Rmdir(dir)
		if err == nil && c != "memory" {
			err = unix.Mkdir(dir, 0o755)
		}
		if err != nil {
			l.t.Fatal(err)
		}
	}
}

func newLab(t *testing.T) *lab {
	t.Helper()
	if testing.Short() {
		t.Skip("needs a longer run: some seconds")
	}
	testkit.NeedsRoot(t)
	for _, tool := range []string{"tc", "nsenter", "prlimit"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skipf("needs %s", tool)
		}
	}
	cg, err := host.ReadCgroups("/proc")
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []string{"cpu", "cpuset", "memory", "pids", "blkio", "devices"} {
		if cg.Has(c) != "v1" {
			t.Skip("needs " + c + " on cgroup v1")
		}
	}
	disk := loop.ForTest(t, 1<<20)
	var st unix.Stat_t
	if err := unix.Stat(disk, &st); err != nil {
		t.Fatal(err)
	}
	b := env.New(t, "/var/tmp")
	l := &lab{t: t, cg: cg, Berth: b, spec: filepath.Join(b.Dir(), "node.yaml"), name: "drifts", disk: fmt.Sprintf("%d:%d", unix.Major(st.Rdev), unix.Minor(st.Rdev))}
	testkit.Must(t, os.WriteFile(l.spec, []byte(strings.NewReplacer("NAME", l.name, "DISK", disk).Replace(drifted)), 0o600))
	t.Cleanup(func() {
		l.t = t
		l.run(0, "rm", "--force", l.name)
	})
	l.run(0, "apply", "-f", l.spec)
	l.group = l.shown().Cgroup
	l.seen(false)
	return l
}

// run runs berth, which exits with this code, and returns its output.
func (l *lab) run(code int, args ...string) string {
	l.t.Helper()
	cmd := l.Command(args...)
	out, err := cmd.CombinedOutput()
	if got := cmd.ProcessState.ExitCode(); got != code {
		l.t.Fatalf("berth %s: exit %d (%v): %s", strings.Join(args, " "), got, err, out)
	}
	return string(out)
}

type shown struct {
	PID     int      `json:"pid"`
	Cgroup  string   `json:"cgroup"`
	Outside []string `json:"outside"`
	Limits  []struct {
		Key   string `json:"key"`
		Holds bool   `json:"holds"`
		By    string `json:"honoured_by"`
	} `json:"limits"`
}

func (l *lab) shown() (s shown) {
	l.t.Helper()
	if err := json.Unmarshal([]byte(l.run(0, "show", "--json", l.name)), &s); err != nil {
		l.t.Fatal(err)
	}
	return s
}

func (l *lab) first() int { return l.shown().PID }

// seen checks that show, ls and plan say of these limits, and no others, that they are lost. It returns what ls said.
func (l *lab) seen(lost bool, keys ...string) string {
	l.t.Helper()
	code := map[bool]int{true: 6}[lost]
	plan, set, ls, s := l.run(code, "plan", "-f", l.spec, "--detailed-exitcode"), l.run(code, "plan", l.name, "--detailed-exitcode"), l.run(0, "ls"), l.shown()
	if strings.Contains(ls, "LIMITS-LOST") != lost {
		l.t.Errorf("lost: %v; ls says %s", keys, ls)
	}
	var broken []string
	for _, one := range s.Limits {
		if !one.Holds && one.By != "nothing here" {
			broken = append(broken, one.Key)
		}
	}
	if !lost && len(broken)+len(s.Outside) > 0 {
		l.t.Errorf("does not hold: %v, outside: %v", broken, s.Outside)
	}
	for _, key := range keys {
		if !strings.Contains(plan, "\n      "+key+": ") || !strings.Contains(set, "\n      "+key+": ") {
			l.t.Errorf("%s is lost; plan -f says %s, plan NAME %s", key, plan, set)
		}
		if key == "processes" {
			if len(s.Outside) == 0 || !slices.Contains(broken, "cpu.max") || !slices.Contains(broken, "io.data.read.iops") || !strings.Contains(ls, "not in its cgroup: process ") {
				l.t.Errorf("outside: %v; does not hold: %v; ls: %s", s.Outside, broken, ls)
			}
			continue
		}
		if !strings.HasSuffix(key, ".spoof") && !slices.ContainsFunc(broken, func(b string) bool { return strings.HasPrefix(b, key) }) || !strings.Contains(ls, l.name+": "+key+" is ") { // the check of what is sent is shown with its interface
			l.t.Errorf("%s is lost; does not hold: %v; ls: %s", key, broken, ls)
		}
	}
	return ls
}

func (l *lab) write(file, text string) {
	l.t.Helper()
	if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
		l.t.Fatal(err)
	}
}

func (l *lab) read(file string) string {
	l.t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		l.t.Fatal(err)
	}
	return strings.TrimSpace(string(text))
}

func (l *lab) must(cmd *exec.Cmd) {
	l.t.Helper()
	if out, err := cmd.CombinedOutput(); err != nil {
		l.t.Fatalf("%s: %v: %s", cmd, err, out)
	}
}
