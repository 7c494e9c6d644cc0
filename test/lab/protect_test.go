package lab_test

import (
	"fmt"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"berth/test/lab"
	"berth/test/testkit"
)

// Where units have their groups, and a script that prints what berth protect may change.
const (
	slice = "/sys/fs/cgroup/system.slice"
	look  = `cd /sys/fs/cgroup/system.slice; grep -Hs '' cpu.weight */cpu.weight */io.weight */memory.low | sort
systemctl show -p CPUWeight -p IOWeight -p MemoryLow store other system.slice
find /etc/systemd /run/systemd/system.control -type f 2>/dev/null | sort | while read f; do echo $f; cat $f; done`
)

// weight is a unit's cpu.weight. It has no file as long as the CPU controller is not enabled there.
func weight(t *testing.T, m *lab.VM, unit string) string {
	t.Helper()
	return m.OK(t, "cat "+slice+"/"+unit+"/cpu.weight 2>/dev/null || echo normal")
}

// TestProtect protects services (class storage) on a host with systemd, and unprotects them.
func TestProtect(t *testing.T) {
	t.Parallel()
	m := start(t, lab.Machine{CPUs: 2, Memory: 1024, Kernel: "numa=fake=2", Disks: []lab.Disk{{Size: 64 << 20, Hot: true}, {Size: 64 << 20, Hot: true}}})
	m.OK(t, `for u in store other; do
printf '[Service]\nExecStart=/bin/sleep infinity\n[Install]\nWantedBy=multi-user.target\n' >/etc/systemd/system/$u.service; done
systemctl daemon-reload; systemctl -q enable --now store other`)
	t.Run("unit", func(t *testing.T) { protectUnit(t, m) })
	t.Run("unit that was never touched", func(t *testing.T) { protectPlainUnit(t, m) })
	t.Run("memory", func(t *testing.T) { protectMemory(t, m) })
	t.Run("process", func(t *testing.T) { protectProcess(t, m) })
	t.Run("cgroup", func(t *testing.T) { protectGroup(t, m) })
	t.Run("classes", func(t *testing.T) { protectClasses(t, m) })
	t.Run("BFQ comes late", func(t *testing.T) { bfqComesLate(t, m) })
	t.Run("batch gives way on the CPU", func(t *testing.T) { batchGivesWay(t, m) })
	t.Run("huge pages", func(t *testing.T) { hugePages(t, m) })
	t.Run("NUMA", func(t *testing.T) { numaNode(t, m) })
	t.Run("boot", func(t *testing.T) { protectedOverBoot(t, m) })
}

// protectUnit protects a unit of systemd, through a restart of it, and leaves nothing behind.
func protectUnit(t *testing.T, m *lab.VM) {
	m.OK(t, "systemctl set-property store IOWeight=200") // enables the controllers beforehand
	before := m.OK(t, look)
	m.OK(t, "berth protect store")
	if got := weight(t, m, "store.service"); got != "1000" {
		t.Errorf("cpu.weight of a protected unit: %s", got)
	}
	if got := weight(t, m, "other.service"); got != "100" {
		t.Errorf("cpu.weight of its neighbour: %s", got)
	}
	m.OK(t, "systemctl restart store")
	if got := weight(t, m, "store.service"); got != "1000" {
		t.Errorf("cpu.weight after a restart of the unit: %s", got)
	}
	pid := m.OK(t, "systemctl show -P MainPID store")
	if got := m.OK(t, "berth ls | grep store"); !strings.Contains(got, "protected") || !strings.Contains(got, pid) {
		t.Errorf("berth ls: %s", got)
	}
	if r := m.Run(t, "berth", "protect", pid); r.Code != 5 || !strings.Contains(r.Err, "store.service is protected already") {
		t.Errorf("protected again by its process: %+v", r)
	}
	m.OK(t, "berth unprotect store")
	if d := cmp.Diff(before, m.OK(t, look)); d != "" {
		t.Errorf("after unprotect (-before +after):\n%s", d)
	}
	m.OK(t, "systemctl restart store")
	if d := cmp.Diff(before, m.OK(t, look)); d != "" {
		t.Errorf("after a restart (-before +after):\n%s", d)
	}
}

// protectPlainUnit protects a unit for which no controller was enabled before.
func protectPlainUnit(t *testing.T, m *lab.VM) {
	m.OK(t, "berth protect other.service --cpu-weight 700; systemctl stop other; berth ls | grep other; systemctl start other")
	if got := weight(t, m, "other.service"); got != "700" {
		t.Errorf("cpu.weight of a unit that was stopped and started: %s", got)
	}
	m.OK(t, "berth unprotect other; test ! -e /etc/systemd/system.control/other.service.d")
	if got := weight(t, m, "other.service"); got != "normal" {
		t.Errorf("cpu.weight after unprotect: %s", got)
	}
	if got := m.OK(t, "systemctl show -P CPUWeight other"); got != "[not set]" {
		t.Errorf("CPUWeight after unprotect: %s", got)
	}
}

// protectMemory adds the memory of protected units up in the slice above them.
func protectMemory(t *testing.T, m *lab.VM) {
	before := m.OK(t, look)
	low := func(t *testing.T) string {
		t.Helper()
		return m.OK(t, "cd "+slice+"; echo $(cat memory.low store.service/memory.low other.service/memory.low)")
	}
	m.OK(t, "berth protect store --memory-low 20MiB; berth protect other --memory-low 10MiB")
	if got := low(t); got != "31457280 20971520 10485760" {
		t.Errorf("memory.low of the slice and of two protected units: %s", got)
	}
	m.OK(t, "berth unprotect store")
	if got := low(t); got != "10485760 0 10485760" {
		t.Errorf("memory.low when one of them is not protected any more: %s", got)
	}
	m.OK(t, "berth unprotect other")
	if d := cmp.Diff(before, m.OK(t, look)); d != "" {
		t.Errorf("after unprotect (-before +after):\n%s", d)
	}
}

// protectProcess protects a process of a scope, in a group of its own.
func protectProcess(t *testing.T, m *lab.VM) {
	m.OK(t, "systemd-run -q --scope --unit=talk sh -c 'sleep 3001 & sleep 3002 & wait' >/dev/null 2>&1 & while awaiting; do pgrep -f '^sleep 3001' && pgrep -f '^sleep 3002' && exit; done; exit 1")
	pid := m.OK(t, "pgrep -f '^sleep 3001'")
	group := "cat /proc/" + pid + "/cgroup"
	before := m.OK(t, group)
	m.OK(t, "berth protect "+pid)
	if got := m.OK(t, group+"; cat /sys/fs/cgroup/berth.pid."+pid+"/cpu.weight"); got != "0::/berth.pid."+pid+"\n1000" {
		t.Errorf("cgroup and cpu.weight of a protected process: %q", got)
	}
	m.OK(t, "berth unprotect "+pid)
	if got := m.OK(t, group); got != before {
		t.Errorf("cgroup of a process after unprotect: %s, before: %s", got, before)
	}
	m.OK(t, "test ! -e /sys/fs/cgroup/berth.pid."+pid+"; systemctl stop talk.scope")
}

// protectGroup protects a cgroup that somebody else made, and refuses what is none.
func protectGroup(t *testing.T, m *lab.VM) {
	m.OK(t, "echo +cpu >/sys/fs/cgroup/cgroup.subtree_control; mkdir /sys/fs/cgroup/mine; echo 50 >/sys/fs/cgroup/mine/cpu.weight; berth protect /sys/fs/cgroup/mine")
	if got := m.OK(t, "cat /sys/fs/cgroup/mine/cpu.weight"); got != "1000" {
		t.Errorf("cpu.weight of a protected cgroup: %s", got)
	}
	m.OK(t, "berth unprotect /mine")
	if got := m.OK(t, "cat /sys/fs/cgroup/mine/cpu.weight; rmdir /sys/fs/cgroup/mine"); got != "50" {
		t.Errorf("cpu.weight after unprotect: %s", got)
	}
	for _, what := range []string{"/", "1", "nothing", "system.slice", "/sys/fs/cgroup/system.slice", "2"} {
		if r := m.Run(t, "berth", "protect", what); r.Code != 2 && r.Code != 4 {
			t.Errorf("protect %s: %+v", what, r)
		}
	}
}

// protectClasses gives nodes of class storage what the class has.
func protectClasses(t *testing.T, m *lab.VM) {
	node(t, m, "name: s1\nimage: host\nclass: storage\ncommand: [sleep, infinity]\nmemory: {max: 100MiB}\n")
	node(t, m, "name: s2\nimage: host\nclass: storage\ncommand: [sleep, infinity]\nmemory: {max: 60MiB, low: 20MiB, min: 10MiB}\n")
	want := map[string]string{
		"memory.low": strconv.Itoa(70 << 20), "memory.min": strconv.Itoa(10 << 20),
		"s1/memory.low": strconv.Itoa(50 << 20), "s2/memory.min": strconv.Itoa(10 << 20), "cpu.weight": "1000",
	}
	if d := cmp.Diff(want, files(t, m, "/sys/fs/cgroup/berth.storage", keys(want)...)); d != "" {
		t.Errorf("class storage (-want +got):\n%s", d)
	}
	if got := m.OK(t, fmt.Sprintf("cat /proc/%d/oom_score_adj", show(t, m, "s1").PID)); got != "-500" {
		t.Errorf("oom_score_adj of class storage: %s", got)
	}
	m.OK(t, "berth set s2 memory.low=max; berth stop s1")
	if got := m.OK(t, "cat /sys/fs/cgroup/berth.storage/memory.low"); got != "0" {
		t.Errorf("memory.low of the class when nobody asks for any: %s", got)
	}
	node(t, m, "name: b1\nimage: host\nclass: batch\ncommand: [sleep, infinity]\n")
	t.Logf("the kernel's files for I/O: %s", m.OK(t, "cd /sys/fs/cgroup/berth.batch; ls -d io.*; grep -H '' cpu.idle io.weight io.bfq.weight io.prio.class 2>/dev/null || true"))
	t.Logf("NUMA: %s", m.OK(t, "grep -H '' /sys/devices/system/node/node*/cpulist"))
	for _, l := range show(t, m, "b1").Limits {
		t.Logf("%+v", l)
	}
}

// batchGivesWay measures what a batch node gets of a CPU beside a busy service.
func batchGivesWay(t *testing.T, m *lab.VM) {
	node(t, m, "name: b2\nimage: host\nclass: batch\ncpu: {set: \"0\"}\ncommand: [sh, -c, 'while :; do :; done']\n")
	m.OK(t, "systemd-run -q --unit=busy -p AllowedCPUs=0 sh -c 'while :; do :; done'")
	used := func() (service, batch int) {
		text := m.OK(t, "sed -n s/usage_usec.//p "+slice+"/busy.service/cpu.stat /sys/fs/cgroup/berth.batch/b2/cpu.stat")
		if _, err := fmt.Sscan(text, &service, &batch); err != nil {
			t.Fatal(err)
		}
		return service, batch
	}
	s0, b0 := used()
	m.OK(t, "sleep 5")
	s1, b1 := used()
	share := float64(b1-b0) / float64(s1-s0+b1-b0)
	t.Logf("a batch node beside a busy service on one CPU: %.1f %% of it", 100*share)
	most := 0.25
	if testkit.Measures() {
		most = 0.05
	}
	if share > most { // an idle group has weight 3 against 1024
		t.Errorf("a batch node beside a busy service got %.1f %% of the CPU", 100*share)
	}
	m.OK(t, "systemctl stop busy")
}

// hugePages gives a node huge pages of the host.
func hugePages(t *testing.T, m *lab.VM) {
	const spec = "name: h1\nimage: host\nhugepages: {2MiB: 4MiB}\ncommand: [sleep, infinity]\n"
	m.Write(t, "/root/huge.yaml", spec)
	if r := m.Run(t, "berth", "apply", "-f", "/root/huge.yaml"); r.Code != 3 || !strings.Contains(r.Err, "this host has 0 of such pages free") {
		t.Errorf("huge pages that the host has not: %+v", r)
	}
	m.OK(t, "echo 4 >/proc/sys/vm/nr_hugepages; test $(cat /proc/sys/vm/nr_hugepages) = 4")
	node(t, m, spec)
	m.OK(t, `berth exec h1 -- sh -ec 'fallocate -l 4M /dev/hugepages/a; ! fallocate -l 2M /dev/hugepages/b 2>/dev/null'`)
	if got := m.OK(t, "cat /sys/fs/cgroup/berth/h1/hugetlb.2MB.current"); got != "4194304" {
		t.Errorf("huge pages counted as the node's: %s", got)
	}
	if r := m.Run(t, "berth", "set", "h1", "hugepages.2MiB=10MiB"); r.Code != 3 {
		t.Errorf("more than the host has: %+v", r)
	}
	m.OK(t, "berth rm --force h1; grep 'HugePages_Free: *4$' /proc/meminfo")
	m.OK(t, "berth apply -f /root/huge.yaml") // for the rm at the end of the test
}

// numaNode binds a node to a NUMA node.
func numaNode(t *testing.T, m *lab.VM) {
	nodes := strings.Fields(m.OK(t, "cd /sys/devices/system/node; for n in node*; do echo $(cat $n/cpulist); done"))
	if len(nodes) < 2 {
		t.Skip("needs a kernel that makes NUMA nodes up (numa=fake)")
	}
	node(t, m, "name: m1\nimage: host\ncpu: {numa: 1}\ncommand: [sleep, infinity]\n")
	want := map[string]string{"cpuset.mems.effective": "1", "cpuset.cpus.effective": nodes[1]}
	if d := cmp.Diff(want, files(t, m, "/sys/fs/cgroup/berth/m1", keys(want)...)); d != "" {
		t.Errorf("cpu.numa 1 (-want +got):\n%s", d)
	}
	m.Write(t, "/root/no.yaml", "name: m2\nimage: host\ncpu: {numa: 9}\ncommand: [sleep, infinity]\n")
	if r := m.Run(t, "berth", "apply", "-f", "/root/no.yaml"); r.Code != 3 || !strings.Contains(r.Err, "this host has NUMA nodes") {
		t.Errorf("a NUMA node that is not there: %+v", r)
	}
}

// bfqComesLate: a node without a class loads BFQ's module, which adds weight files with the default of 100 to existing cgroups.
// These cgroups still get the weights that they were given.
func bfqComesLate(t *testing.T, m *lab.VM) {
	m.OK(t, "! grep -q '^bfq ' /proc/modules")
	m.OK(t, "echo '+cpu +io' >/sys/fs/cgroup/cgroup.subtree_control; mkdir /sys/fs/cgroup/mine")
	defer m.OK(t, "berth unprotect other; berth unprotect /mine; cat /sys/fs/cgroup/mine/io.bfq.weight; rmdir /sys/fs/cgroup/mine")
	m.OK(t, "berth protect other; berth protect /mine")
	node(t, m, "name: l1\nimage: host\nclass: batch\ncommand: [sleep, infinity]\n")
	node(t, m, "name: l2\nimage: host\nclass: storage\ncommand: [sleep, infinity]\n")
	const files = "cd /sys/fs/cgroup; grep -H '' berth.batch/io.bfq.weight berth.storage/io.bfq.weight mine/io.bfq.weight system.slice/other.service/io.bfq.weight system.slice/store.service/io.bfq.weight"
	m.OK(t, "! ( "+files+" ) 2>/dev/null") // else nothing is shown
	node(t, m, "name: l3\nimage: host\ncommand: [sleep, infinity]\nio: [{name: d, device: /dev/vdb, engine: bfq}]\n")
	got := map[string]string{}
	for line := range strings.Lines(m.OK(t, files+" || true")) {
		file, value, _ := strings.Cut(strings.TrimSpace(line), ":")
		got[strings.TrimSuffix(file, "/io.bfq.weight")] = value
	}
	want := map[string]string{
		"berth.batch": "default 1", "berth.storage": "default 1000", "mine": "default 1000", "system.slice/store.service": "default 100",
		"system.slice/other.service": "default 181", // an IOWeight of 1000 on BFQ's scale, as systemd maps it (BFQ_WEIGHT)
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("weights for BFQ, whose module came after the groups (-want +got):\n%s", d)
	}
}

// protectedOverBoot: after a reboot the disk of a protected unit has another name, and another disk has its name. Its engine is
// switched again automatically, and no other disk's. A missing disk is reported and does not prevent other protections.
func protectedOverBoot(t *testing.T, m *lab.VM) {
	eventually := func(what, script string) {
		t.Helper()
		m.Await(t, what, script, "berth ls; cat /sys/block/vd?/queue/scheduler; systemctl status --no-pager berth-protect")
	}
	// switched returns a script that succeeds if only this disk uses BFQ.
	switched := func(disk string) string {
		return "test \"$(cd /sys/block; grep -l '[[]bfq[]]' vd?/queue/scheduler | cut -d/ -f1)\" = \"" + disk + "\""
	}
	m.Unplug(t, 0)
	m.Unplug(t, 1)
	eventually("both disks go", "! test -e /sys/block/vdb && ! test -e /sys/block/vdc")
	m.Plug(t, 1)
	eventually("the second comes first", "test $(cat /sys/block/vdb/serial) = disk1")
	m.Plug(t, 0)
	eventually("then the first", "test $(cat /sys/block/vdc/serial) = disk0")
	m.OK(t, "udevadm settle; berth protect store --disk /dev/vdc --engine bfq")
	m.OK(t, switched("vdc"))
	t.Log(m.OK(t, "cat /etc/systemd/system/multi-user.target.wants/berth-protect.service"))

	m.Reboot(t)
	m.OK(t, "test $(cat /sys/block/vdb/serial) = disk0") // else nothing is shown
	eventually("the disk is switched again, and no other", switched("vdb"))
	eventually("its unit has its weight", "grep -v ' 100$' "+"/sys/fs/cgroup/system.slice/store.service/io.bfq.weight")
	eventually("it is said", "journalctl -b -u berth-protect | grep 'store.service disk vdb switched to bfq again'")
	m.OK(t, switched("vdb")+"; berth ls | grep store; berth repair | grep '^nothing to repair$'; ! berth ls | grep 'engine off'")

	m.Unplug(t, 0)
	eventually("the disk goes", "! test -e /sys/block/vdb")
	m.OK(t, `berth ls | grep '^store.service .*protected, engine off'
berth repair | grep '^store.service not switched to bfq: disk vdb (serial disk0) is not there'
berth protect other 2>&1 | grep '^store.service not switched to bfq'
berth unprotect other; test -e /etc/systemd/system/berth-protect.service`)
	m.Plug(t, 0)
	eventually("it is back", "test \"$(cat /sys/block/vdb/serial 2>/dev/null)\" = disk0")
	m.OK(t, "udevadm settle; berth repair | grep 'disk vdb switched to bfq again'; "+switched("vdb")+"; berth unprotect store; "+switched(""))
	m.OK(t, "test -z \"$(ls /run/berth.disks)$(find /etc/systemd -name 'berth-protect*')\"")
}
