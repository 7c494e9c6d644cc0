package lab_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"berth/test/lab"
)

// drifting is a node with a limit of each kind that another program can take from it by hand.
const drifting = `name: d1
image: host
class: storage
command: [/bin/sh, -c, "sleep 100000 & while :; do sleep 100000; done"]
cpu: {max: 0.5, weight: 50, set: "0"}
memory: {max: 256MiB, high: 200MiB, low: 32MiB, min: 8MiB, swap: 0}
pids: 64
hugepages: {2MiB: 2MiB}
sysctls: {net.core.somaxconn: 128, kernel.msgmax: 4096}
devices: [/dev/vdb, /dev/vdc]
io:
  - {name: b, device: /dev/vdb, weight: 200, engine: bfq, read: {rate: 10MB/s, iops: 500}, write: {rate: 8MB/s, iops: 400}}
  - {name: c, device: /dev/vdc, weight: 300, engine: iocost, model: "rbps=100000000 rseqiops=5000 rrandiops=5000 wbps=100000000 wseqiops=5000 wrandiops=5000"}
network: [{name: eth0, mode: bridge, rate: {tx: 10Mbit/s, rx: 20Mbit/s}}]
`

// inDrift begins the scripts of these tests: the groups, process 1 of the node, its child and the disks.
const inDrift = `T=/sys/fs/cgroup P=$T/berth.storage G=$T/berth.storage/d1
pid=$(cat /run/berth/nodes/d1/pid) child=$(pgrep -P $(cat /run/berth/nodes/d1/pid) | head -n 1)
b=$(cat /sys/block/vdb/dev) c=$(cat /sys/block/vdc/dev)
ns() { nsenter -t $pid "$@"; }
hub() { nsenter --net=/run/berth/bridge "$@"; }
top() { for p; do echo $p >$T/cgroup.procs; done; }
all() { echo $pid $(pgrep -g $pid) $(pgrep -P $pid) | tr ' ' '\n' | sort -u; }
empty() { top $(all); find $G -depth -type d -exec rmdir {} ';'; }
`

// kernel prints all that the node has of the kernel, which is asked here and not by way of berth.
const kernel = inDrift + `cd $G
grep -H '' cpu.max cpu.weight cpuset.cpus cpuset.cpus.effective memory.max memory.high memory.low memory.min memory.swap.max pids.max hugetlb.2MB.max \
	io.max io.weight io.bfq.weight node/cpu.max node/memory.max node/memory.low node/memory.min node/memory.swap.max node/pids.max | sort
tr ' ' '\n' <cgroup.subtree_control | grep -v -x -e rdma -e misc | sort # these two a runtime hands on, for nobody
(cd ..; grep -H '' cpu.weight io.weight io.bfq.weight memory.low memory.min | sort)
cd /sys/block/vdb/queue; grep -H '' scheduler nr_requests iosched/low_latency; grep $c $T/io.cost.qos $T/io.cost.model
ns -n tc qdisc show dev eth0 | sed 's/ [0-9a-f]*: / /'; hub tc qdisc show | grep -e tbf -e clsact | sed 's/ [0-9a-f]*: / /'
ns -n cat /proc/sys/net/core/somaxconn; ns -i cat /proc/sys/kernel/msgmax
cat /proc/$pid/cgroup /proc/$child/cgroup
for d in vda vdb vdc; do (echo $BASHPID >$G/node/cgroup.procs; exec 2>/dev/null; : </dev/$d) && echo may read $d || echo may not read $d; done
`

// taken is one thing that another program takes from the node.
type taken struct {
	key  string // as ls and plan name it
	set  string // the change of berth set that gives it back; "": apply and repair alone do
	take string // the script that takes it
}

// overwritten are values that are written over, each by itself.
var overwritten = []taken{
	{"cpu.max", "cpu.max=0.5", "echo max >$G/cpu.max"},
	{"cpu.weight", "cpu.weight=50", "echo 100 >$G/cpu.weight"},
	{"cpu.set", "cpu.set=0", "echo 0-1 >$G/cpuset.cpus"},
	{"memory.max", "memory.max=256MiB", "echo max >$G/memory.max"},
	{"memory.high", "memory.high=200MiB", "echo max >$G/memory.high"},
	{"memory.low", "memory.low=32MiB", "echo 0 >$G/memory.low"},
	{"memory.min", "memory.min=8MiB", "echo 4096 >$G/memory.min"},
	{"memory.swap", "memory.swap=0", "echo max >$G/memory.swap.max"},
	{"pids", "pids=64", "echo max >$G/pids.max"},
	{"hugepages.2MiB", "hugepages.2MiB=2MiB", "echo max >$G/hugetlb.2MB.max"},
	{"io.b.read.rate", "io.b.read.rate=10MB/s", "echo $b rbps=max >$G/io.max"},
	{"io.b.read.iops", "io.b.read.iops=500", "echo $b riops=max >$G/io.max"},
	{"io.b.write.rate", "io.b.write.rate=8MB/s", "echo $b wbps=20000000 >$G/io.max"},
	{"io.b.write.iops", "io.b.write.iops=400", "echo $b wiops=max >$G/io.max"},
	{"io.b.weight", "io.b.weight=200", "echo $b default >$G/io.bfq.weight"},
	{"io.c.weight", "io.c.weight=300", "echo $c default >$G/io.weight"},
	{"net.eth0.tx", "net.eth0.tx=10Mbit/s", "ns -n tc qdisc replace dev eth0 root pfifo"},
	{"net.eth0.rx", "net.eth0.rx=20Mbit/s", "for d in $(hub tc qdisc show | grep tbf | grep -o 'dev [^ ]*' | cut -c5-); do hub tc qdisc del dev $d root; done"},
	{"devices", "", "undevice $G/node"},
	{"class", "", "echo 100 >$P/cpu.weight"},
	{"net.eth0.spoof", "", "for d in $(hub tc qdisc show | grep clsact | grep -o 'dev [^ ]*' | cut -c5-); do hub tc qdisc del dev $d clsact; done"},
	{"sysctls.net.core.somaxconn", "", "ns -n sh -c 'echo 4096 >/proc/sys/net/core/somaxconn'"},
	{"sysctls.kernel.msgmax", "", "ns -U -i sh -c 'echo 8192 >/proc/sys/kernel/msgmax'"},
}

// elsewhere are the same limits, taken where the kernel has them besides: in the container's own group, in the group above, in the disk.
var elsewhere = []taken{
	{"cpu.max", "cpu.max=0.5", "echo 10000 100000 >$G/node/cpu.max"},
	{"cpu.weight", "cpu.weight=50", "echo 1 >$G/cpu.idle"},
	{"memory.max", "memory.max=256MiB", "echo max >$G/node/memory.max"},
	{"memory.low", "memory.low=32MiB", "echo 0 >$P/memory.low"}, // the kernel protects no more than the group above has
	{"memory.min", "memory.min=8MiB", "echo 0 >$P/memory.min"},
	{"memory.swap", "memory.swap=0", "echo max >$G/node/memory.swap.max"},
	{"pids", "pids=64", "echo 7 >$G/node/pids.max"},
	{"io.b.read.rate", "io.b.read.rate=10MB/s", "echo $b rbps=1000000 >$G/io.max"},
	{"net.eth0.tx", "net.eth0.tx=10Mbit/s", "ns -n tc qdisc replace dev eth0 root tbf rate 1gbit burst 100k latency 50ms"},
	{"io.b.weight", "io.b.weight=200", "echo none >/sys/block/vdb/queue/scheduler"},
	{"disk vdc", "io.c.weight=300", "echo $c enable=0 >$T/io.cost.qos"},
	{"devices", "", "undevice $G/node all"},
	{"class", "", "echo default 100 >$P/io.weight"},
}

// engine are settings of disks without which weights mean less. The weights are read back as they are.
var engine = []taken{
	{"disk vdb", "io.b.weight=200", "echo 1 >/sys/block/vdb/queue/iosched/low_latency; echo 64 >/sys/block/vdb/queue/nr_requests"},
	{"disk vdc", "io.c.weight=300", "echo $c model=linear rbps=1000000000 rseqiops=50000 rrandiops=50000 wbps=1000000000 wseqiops=50000 wrandiops=50000 >$T/io.cost.model"},
	{"class", "", "echo default 100 >$P/io.bfq.weight"},
}

// away are ways in which processes leave what limits them; ls names them all "processes".
var away = []struct{ name, take, mend string }{
	{"process 1 to the top", "top $pid", "berth set d1 pids=64"},
	{"a child into another group of the node's parent", "mkdir $P/other; echo $child >$P/other/cgroup.procs", "berth apply -f /root/node.yaml; rmdir $P/other"},
	{
		"systemd takes process 1 into a scope",
		"busctl -q call org.freedesktop.systemd1 /org/freedesktop/systemd1 org.freedesktop.systemd1.Manager StartTransientUnit 'ssa(sv)a(sa(sv))' stolen.scope fail 1 PIDs au 1 $pid 0; " +
			"while awaiting; do grep -q stolen.scope /proc/$pid/cgroup && exit; done; exit 1", "berth repair",
	},
	{"the container's group is removed", "top $(all); rmdir $G/node", "berth repair"},
	{"the group is removed", "empty", "berth set d1 pids=64"},
	{"the group and the one above it", "empty; rmdir $P", "berth repair"},
	{
		"the group is made anew, with all that is in it",
		"empty; mkdir $G; echo '+pids +memory' >$G/cgroup.subtree_control; mkdir $G/node $G/helpers; for p in $(all); do echo $p >$G/node/cgroup.procs; done", "berth apply -f /root/node.yaml",
	},
}

// quiet is what systemd does that takes nothing from a node.
var quiet = []string{
	"systemctl daemon-reload",
	"systemctl set-property --runtime -- -.slice CPUWeight=200 IOWeight=300 MemoryMax=infinity; systemctl revert -- -.slice",
	"systemd-run -q --unit=inslice --slice=berth.slice -p CPUWeight=50 -p IOWeight=500 -p AllowedCPUs=0 -p MemoryMax=50M sleep 1000; systemctl set-property --runtime berth.slice MemoryMax=60M; systemctl daemon-reload; systemctl stop berth.slice",
	"systemctl daemon-reexec; systemctl is-system-running --wait || true",
}

// TestDrift changes by hand what Berth has set, as another program may, on a host with cgroup v2 and systemd: limits of a node, weights of
// services. show, plan and ls see it and change nothing; apply, set, repair and protect write it again, as the kernel is asked here.
func TestDrift(t *testing.T) {
	m := start(t, lab.Machine{Disks: []lab.Disk{{Size: 64 << 20}, {Size: 64 << 20}, {Root: true}}})
	installUndevice(t, m)
	m.OK(t, "echo 2 >/proc/sys/vm/nr_hugepages; modprobe bfq")
	t.Run("node", func(t *testing.T) { nodeDrifts(t, m) })
	t.Run("init", func(t *testing.T) { groupOfInit(t, m) })
	t.Run("services", func(t *testing.T) { servicesDrift(t, m) })
	t.Run("agent", func(t *testing.T) { agentAtItsLimit(t, m) })
}

func installUndevice(t *testing.T, m *lab.VM) {
	program := filepath.Join(t.TempDir(), "undevice")
	build := exec.CommandContext(t.Context(), "go", "build", "-o", program, "./undevice")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if text, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build undevice: %v: %s", err, text)
	}
	m.Copy(t, program, "/usr/local/bin/undevice")
}

func nodeDrifts(t *testing.T, m *lab.VM) {
	node(t, m, drifting)
	before := m.OK(t, kernel)
	t.Logf("the kernel has:\n%s", before)
	seen(t, m, false)
	for _, table := range []struct {
		name  string
		all   []taken
		mends []string
	}{{"overwritten", overwritten, []string{"apply", "set", "repair"}}, {"elsewhere", elsewhere, []string{"set", "repair"}}, {"engine", engine, []string{"apply"}}} {
		for _, mend := range table.mends {
			t.Run(table.name+"/"+mend, func(t *testing.T) {
				command := map[string]string{"apply": "berth apply -f /root/node.yaml", "set": "berth set d1", "repair": "berth repair"}[mend]
				take, keys := inDrift, []string(nil)
				for _, v := range table.all {
					if mend == "set" && v.set == "" {
						continue
					}
					take, keys = take+v.take+"\n", append(keys, v.key)
					if mend == "set" {
						command += " " + v.set
					}
				}
				mended(t, m, before, take, keys, command)
			})
		}
	}
	for _, a := range away {
		t.Run("away/"+a.name, func(t *testing.T) { mended(t, m, before, inDrift+a.take, []string{"processes"}, inDrift+a.mend) })
	}
	t.Run("controllers", func(t *testing.T) { // the kernel lets root switch one off that no group below hands on
		mended(t, m, before, inDrift+"echo -pids >$G/cgroup.subtree_control; echo -pids >$P/cgroup.subtree_control", []string{"controllers", "pids"}, "berth set d1 pids=64")
		mended(t, m, before, inDrift+"for d in $G $P; do echo '-io -hugetlb -cpuset -memory' >$d/cgroup.subtree_control; done",
			[]string{"controllers", "io.b.read.rate", "io.b.weight", "hugepages.2MiB", "memory.max", "cpu.set"}, "berth repair")
	})
	t.Run("a second device program", func(t *testing.T) { // it only narrows; whether it may go, who attached it knows
		r := m.Try(t, inDrift+"undevice $G/node more; berth repair || echo code $?; berth ls; undevice $G/node; berth plan -f /root/node.yaml --detailed-exitcode")
		if r.Code != 0 || !strings.Contains(r.Out, "code 1\n") || !strings.Contains(r.Out, "d1: devices is others") || !strings.Contains(r.Err, "somebody else attached one") {
			t.Errorf("exit code %d: %s%s", r.Code, r.Out, r.Err)
		}
	})
	t.Run("exec", func(t *testing.T) { // a command lands where process 1 is
		m.OK(t, inDrift+"top $pid; berth set d1 cpu.max=0.5; berth exec d1 -- cmp /proc/self/cgroup /proc/1/cgroup")
	})
	t.Run("systemd", func(t *testing.T) {
		for _, does := range quiet {
			m.OK(t, does)
			if d := cmp.Diff(before, m.OK(t, kernel)); d != "" {
				t.Errorf("after %s (-before +after):\n%s", does, d)
			}
		}
		seen(t, m, false)
	})
}

// groupOfInit takes the group from a node's init system in which it makes its own.
func groupOfInit(t *testing.T, m *lab.VM) {
	m.OK(t, "mkdir /srv/root; mount -o ro /dev/vdd /srv/root")
	node(t, m, "name: s1\nimage: dir:/srv/root\nmemory: {max: 256MiB}\ncommand: [/sbin/init]\n")
	m.Await(t, "the init system has made its groups", "[ -d /sys/fs/cgroup/berth/s1/node/init.scope ]", "ls /sys/fs/cgroup/berth/s1/node; berth logs s1")
	r := m.Try(t, `cd /sys/fs/cgroup/berth/s1/node; was=$(stat -c %u .); is() { echo $(stat -c %u $PWD $PWD/cgroup.procs $PWD/cgroup.subtree_control); }
test $was != 0; chown 0:0 $PWD $PWD/cgroup.procs; berth ls | grep '^s1: cgroup is the host.s, not '; berth repair; test "$(is)" = "$was $was $was"; berth plan -f /root/node.yaml --detailed-exitcode`)
	if r.Code != 0 {
		t.Errorf("exit code %d: %s%s", r.Code, r.Out, r.Err)
	}
}

// mended checks that show, ls and plan see what a script takes and change nothing, and that the kernel has all again after a command.
func mended(t *testing.T, m *lab.VM, before, take string, keys []string, command string) {
	t.Helper()
	if r := m.Try(t, take); r.Code != 0 {
		t.Errorf("%s\n%s%s", take, r.Out, r.Err)
		m.Try(t, "berth repair")
		return
	}
	lost := m.Try(t, kernel)
	seen(t, m, true, keys...)
	r := m.Try(t, kernel)
	if d := cmp.Diff(lost.Out, r.Out); d != "" {
		t.Errorf("who only looks changed something (-before +after):\n%s", d)
	}
	if r = m.Try(t, command); r.Code != 0 {
		t.Errorf("%s: exit code %d: %s%s", command, r.Code, r.Out, r.Err)
		r = m.Try(t, "berth repair")
		t.Logf("berth repair: exit code %d: %s%s", r.Code, r.Out, r.Err)
	}
	r = m.Try(t, kernel)
	if d := cmp.Diff(strings.Split(before, "\n"), strings.Split(strings.TrimSuffix(r.Out, "\n"), "\n")); d != "" {
		t.Errorf("after %s (-before +after): %s\n%s", command, r.Err, d)
	}
	if r = m.Try(t, "berth plan -f /root/node.yaml --detailed-exitcode; berth ls"); r.Code != 0 || strings.Contains(r.Out, "LIMITS-LOST") {
		t.Errorf("afterwards plan and ls: exit code %d: %s%s", r.Code, r.Out, r.Err)
	}
}

// seen checks that show, ls and plan say of these keys that they are lost, or that nothing is.
func seen(t *testing.T, m *lab.VM, lost bool, keys ...string) {
	t.Helper()
	r := m.Try(t, `berth plan -f /root/node.yaml --detailed-exitcode && code=0 || code=$?; echo "== $code"
berth plan d1 --detailed-exitcode && code=0 || code=$?; echo "== $code"; berth ls; echo "== $?"`)
	parts := regexp.MustCompile(`(?m)^== (\d+)\n`).Split(r.Out, -1)
	codes := regexp.MustCompile(`(?m)^== (\d+)\n`).FindAllString(r.Out, -1)
	want := []string{"== 0\n", "== 0\n", "== 0\n"}
	if lost {
		want[0], want[1] = "== 6\n", "== 6\n"
	}
	if len(parts) != 4 || !slices.Equal(codes, want) {
		t.Errorf("plan and ls, lost: %v: %s%s", keys, r.Out, r.Err)
		return
	}
	if got := strings.Contains(parts[2], "LIMITS-LOST"); got != lost {
		t.Errorf("lost: %v; ls says %s", keys, parts[2])
	}
	var broken []string
	for _, l := range show(t, m, "d1").Limits {
		if !l.Holds && l.HonouredBy != "nothing here" {
			broken = append(broken, l.Key)
		}
	}
	if !lost && len(broken) > 0 {
		t.Errorf("show: does not hold: %v", broken)
	}
	ls := strings.Join(strings.Fields(parts[2]), " ")
	for _, key := range keys {
		says := fmt.Sprintf("d1: %s is ", key)
		shown := func(b string) bool { return strings.HasPrefix(b, key) }
		if key == "net.eth0.spoof" {
			shown = nil // it is in the line of the interface
		}
		if key == "processes" {
			says, shown = "d1: not in its cgroup: process ", func(b string) bool { return b == "cpu.max" }
		}
		if !strings.Contains(parts[0], "\n      "+key+": ") || !strings.Contains(parts[1], "\n      "+key+": ") || !strings.Contains(ls, says) || shown != nil && !slices.ContainsFunc(broken, shown) {
			t.Errorf("%s is lost; show: %v, plan and ls: %s", key, broken, r.Out)
		}
	}
}
