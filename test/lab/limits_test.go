package lab_test

import (
	"encoding/json"
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
	"berth/test/testkit"
)

// limited sets every limit that Berth has on cgroup v2.
const limited = `name: n1
image: host
command: [sleep, infinity]
cpu: {weight: 200, max: 0.5, set: "1"}
memory: {max: 256MiB, high: 200MiB, low: 32MiB, swap: 0}
pids: 100
hugepages: {2MiB: 4MiB}
devices: [/dev/vdb, /dev/nvme0n1]
io:
  - {name: virtio, device: /dev/vdb, read: {rate: 10MB/s, iops: 5000}, write: {rate: 10MB/s, iops: 4000}}
  - {name: nvme, device: /dev/nvme0n1, read: {rate: 10MB/s}, write: {rate: 10MB/s}}
`

const group = "/sys/fs/cgroup/berth/n1"

// TestLimits sets all limits on a host with cgroup v2 only, and measures a throttle.
func TestLimits(t *testing.T) {
	m := lab.Start(t, lab.Options{Machines: []lab.Machine{{Disks: []lab.Disk{{Size: 256 << 20}, {Size: 256 << 20, NVMe: true}}}}}).VM(0)
	m.OK(t, "echo 8 >/proc/sys/vm/nr_hugepages")
	disks := strings.Fields(m.OK(t, "cat /sys/block/vdb/dev /sys/block/nvme0n1/dev"))

	const on = "cat /sys/fs/cgroup/cgroup.subtree_control"
	if got := m.OK(t, on); strings.Contains(got, "hugetlb") {
		t.Fatalf("systemd hands on %s by itself: that berth enables controllers is not seen here", got)
	}
	install(t, m)

	t.Run("doctor", func(t *testing.T) {
		text := m.OK(t, "berth doctor --all")
		for _, want := range []string{"v2 at /sys/fs/cgroup", "io.max", "this host can run nodes"} {
			if !strings.Contains(text, want) {
				t.Errorf("doctor does not say %q:\n%s", want, text)
			}
		}
	})

	t.Run("run", func(t *testing.T) {
		got := m.Run(t, "berth", "run", "--image", "host", "--", "sh", "-c", "cat /proc/self/cgroup; exit 7")
		if got.Out != "0::/\n" || got.Code != 7 {
			t.Errorf("got %+v", got)
		}
		m.OK(t, "! test -e /sys/fs/cgroup/berth") // removed together with the last node
		for _, controller := range []string{"cpu", "cpuset", "hugetlb", "io", "memory", "pids"} {
			if got := m.OK(t, on); !slices.Contains(strings.Fields(got), controller) {
				t.Errorf("the top of the tree hands on %s, not %s", got, controller)
			}
		}
	})

	t.Run("read back", func(t *testing.T) {
		node(t, m, limited)
		want := map[string]string{
			"cpu.weight": "200", "cpu.max": "50000 100000", "cpuset.cpus": "1", "cpuset.cpus.effective": "1",
			"memory.max": "268435456", "memory.high": "209715200", "memory.low": "33554432", "memory.swap.max": "0",
			"pids.max": "100", "hugetlb.2MB.max": "4194304",
			"io.max": disks[0] + " rbps=10000000 wbps=10000000 riops=5000 wiops=4000\n" +
				disks[1] + " rbps=10000000 wbps=10000000 riops=max wiops=max",
		}
		if d := cmp.Diff(sorted(want), sorted(files(t, m, group, keys(want)...))); d != "" {
			t.Errorf("control files (-want +got):\n%s", d)
		}
		for _, l := range show(t, m, "n1").Limits {
			if !l.Holds || l.Asked != l.ReadBack || l.HonouredBy == "" {
				t.Errorf("show: %+v", l)
			}
		}
		m.OK(t, "berth set n1 cpu.max=1.5 memory.max=300MiB memory.high=max io.virtio.read.rate=20MB/s io.nvme.write.rate=max pids=max cpu.set=0-1")
		want = map[string]string{
			"cpu.max": "150000 100000", "memory.max": "314572800", "memory.high": "max", "pids.max": "max", "cpuset.cpus": "0-1",
			"io.max": disks[0] + " rbps=20000000 wbps=10000000 riops=5000 wiops=4000\n" +
				disks[1] + " rbps=10000000 wbps=max riops=max wiops=max",
		}
		if d := cmp.Diff(sorted(want), sorted(files(t, m, group, keys(want)...))); d != "" {
			t.Errorf("after berth set (-want +got):\n%s", d)
		}
		// The node sees its own limits, in the root group of its container.
		seen := m.OK(t, "berth exec n1 -- sh -c 'cd /sys/fs/cgroup; cat cpu.max memory.max memory.low memory.swap.max pids.max; cat /proc/self/cgroup'")
		if seen != "150000 100000\n314572800\n33554432\n0\nmax\n0::/" {
			t.Errorf("the node sees of its limits:\n%s", seen)
		}
		// It may not write them.
		if r := m.Run(t, "berth", "exec", "n1", "--", "sh", "-c", "echo max >/sys/fs/cgroup/cpu.max"); r.Code == 0 {
			t.Error("a node lifted its own limit")
		}
	})

	t.Run("copies", func(t *testing.T) { // the copier works in the node's groups, and leaves nothing
		node(t, m, limited)
		got := m.OK(t, "echo text >/tmp/in; berth cp /tmp/in n1:/tmp/in && berth exec n1 -- cat /tmp/in; berth cp n1:/tmp/in /tmp/out; cat /tmp/out")
		if got != "text\ntext" {
			t.Errorf("copied in and out: %q", got)
		}
		m.OK(t, "berth export n1 | tar -t | grep -q '^etc/'")
		if got := m.OK(t, "cat "+group+"/helpers/cgroup.procs"); got != "" {
			t.Errorf("a copier is left: %s", got)
		}
	})
	t.Run("resource limits", func(t *testing.T) { setRLimits(t, m) })
	t.Run("top", func(t *testing.T) { topOnV2(t, m) })

	t.Run("throttle", func(t *testing.T) {
		node(t, m, limited)
		for _, disk := range []string{"/dev/vdb", "/dev/nvme0n1"} {
			for _, rw := range []string{"read", "write"} {
				testkit.Rate(t, disk+" "+rw+", MB/s", fio(t, m, "n1", disk, rw)/1e6, 10, 0.03)
			}
		}
	})

	t.Run("helper", func(t *testing.T) { helperOnV2(t, m) })

	t.Run("out of memory", func(t *testing.T) {
		m.Write(t, "/root/oom.yaml", "name: oom\nimage: host\ncommand: [sh, -c, 'head -c 200M /dev/zero | tail >/dev/null']\nmemory: {max: 32MiB, swap: 0}\n")
		m.OK(t, `berth apply -f /root/oom.yaml; while awaiting; do berth ls --json | grep -q running || exit 0; done; exit 1`)
		s := show(t, m, "oom")
		if s.State != "exited" || s.Exit == nil || !s.Exit.OOM || s.Exit.Code != 137 {
			t.Errorf("status of a node that the kernel killed for lack of memory: %+v %+v", s, s.Exit)
		}
		// They are told a moment after the status is written.
		m.OK(t, "while awaiting; do berth events --stream=false oom | grep -A1 ' oom oom$' | grep ' oom ended 137' && break; done")
		if told := m.OK(t, "berth events --stream=false oom; berth rm oom"); !regexp.MustCompile(`(?m) oom oom$\n.* oom ended 137, out of memory$`).MatchString(told) {
			t.Errorf("events: %s", told)
		}
	})

	t.Run("kill by group", func(t *testing.T) {
		node(t, m, "name: fork\nimage: host\ncommand: [sh, -c, 'trap : TERM; while :; do sleep 0.05 & done']\npids: 200\n")
		m.OK(t, "while awaiting; do [ $(cat /sys/fs/cgroup/berth/fork/pids.current) -gt 5 ] && break; done; berth stop --grace 1s fork; ! test -e /sys/fs/cgroup/berth/fork")
	})
}

// helperOnV2 reads and writes a disk in a node and in a helper of it at once: both together have the node's rate, and the
// helper's memory counts as the node's. Stopping the node ends the helper.
func helperOnV2(t *testing.T, m *lab.VM) {
	program := filepath.Join(t.TempDir(), "helper")
	build := exec.CommandContext(t.Context(), "go", "build", "-o", program, "./helper")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if text, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build the helper: %v: %s", err, text)
	}
	m.Copy(t, program, "/usr/local/bin/helper")
	node(t, m, strings.Replace(limited, `max: 0.5, set: "1"`, "max: 1.5", 1))
	for _, rw := range []string{"read", "write"} {
		args := fmt.Sprintf("fio --name=x --thread --output-format=json --filename=/dev/vdb --rw=%s --direct=1 "+
			"--ioengine=libaio --iodepth=4 --bs=64k --size=200m --time_based --runtime=16", rw)
		text := m.OK(t, "count() { n=$(sed -n 's/^'$(cat /sys/block/vdb/dev)' .*"+rw[:1]+"bytes=\\([0-9]*\\).*/\\1/p' $1/io.stat 2>/dev/null); echo ${n:-0}; }; cd "+group+`
			berth exec n1 -- `+args+` >/dev/null & inside=$!
			helper berth/n1 `+args+` >/dev/null & outside=$!
			a=0; h=0; while awaiting; do a=$(count .); h=$(count helpers); if [ $h -gt 1000000 ] && [ $((a-h)) -gt 1000000 ]; then break; fi; done # both have begun
			read from x </proc/uptime; a=$(count .) h=$(count helpers); sleep 8; read to x </proc/uptime; echo $from $to $(($(count .) - a)) $(($(count helpers) - h))
			wait $inside; wait $outside`)
		var from, to, sum, helper float64
		if _, err := fmt.Sscan(text, &from, &to, &sum, &helper); err != nil {
			t.Fatalf("%q: %v", text, err)
		}
		sum, helper = sum/(to-from)/1e6, helper/(to-from)/1e6
		testkit.Rate(t, rw+" of the node and its helper together, MB/s", sum, 10, 0.05)
		if helper < sum/10 || helper > sum*9/10 {
			t.Errorf("%s: the helper had %.2f MB/s of %.2f: one of the two did next to nothing", rw, helper, sum)
		}
	}
	m.OK(t, `cd `+group+`; (helper berth/n1 sh -c 'x=$(head -c 40000000 /dev/zero | tr "\0" a); sleep 1000' || touch /root/ended) >/dev/null 2>&1 &
		while awaiting; do [ $(cat memory.current) -gt 40000000 ] && exit; done; exit 1`)
	m.OK(t, "! grep . "+group+"/cgroup.procs; grep -q . "+group+"/helpers/cgroup.procs") // the kernel wants none where the limits are
	m.OK(t, "berth stop n1; while awaiting; do [ -e /root/ended ] && exit; done; exit 1")
	m.OK(t, "! test -e "+group)
}

// fio returns a node's bytes per second of direct I/O.
func fio(t *testing.T, m *lab.VM, node, disk, rw string) float64 {
	t.Helper()
	text := m.OK(t, fmt.Sprintf("berth exec %s -- fio --name=x --thread --output-format=json --filename=%s --rw=%s --direct=1 "+
		"--ioengine=libaio --iodepth=4 --bs=64k --size=200m --time_based --runtime=8", node, disk, rw))
	var out struct {
		Jobs []map[string]json.RawMessage
	}
	var side struct {
		BW float64 `json:"bw_bytes"`
	}
	if err := json.Unmarshal([]byte(text[strings.Index(text, "{"):]), &out); err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(out.Jobs[0][rw], &side); err != nil {
		t.Fatal(err)
	}
	return side.BW
}

func keys(m map[string]string) []string {
	var all []string
	for k := range m {
		all = append(all, k)
	}
	return all
}

// sorted sorts the lines of each file, because the kernel lists disks in no fixed order.
func sorted(m map[string]string) map[string][]string {
	all := map[string][]string{}
	for k, v := range m {
		all[k] = strings.Split(v, "\n")
		slices.Sort(all[k])
	}
	return all
}
