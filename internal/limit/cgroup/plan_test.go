package cgroup

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"berth/internal/host"
	"berth/internal/host/block"
	"berth/internal/host/group/grouptest"
	"berth/internal/spec/vnode"
	"berth/internal/sys/refuse"
	"berth/internal/sys/step"
	"berth/test/testkit"
)

func ptr[T any](v T) *T { return new(v) }

// fullNode asks for every limit that both versions have.
func fullNode() *vnode.Node {
	return &vnode.Node{
		Name:      "wn-001",
		CPU:       vnode.CPU{Weight: 50, Max: 1500, Set: "0-1"},
		Memory:    vnode.Memory{Max: 4 << 30, Swap: ptr(vnode.Bytes(1 << 30))},
		PIDs:      4096,
		HugePages: vnode.HugePages{1 << 30: 0, 2 << 20: 512 << 20},
		IO: []vnode.IO{
			{Name: "data", Device: "/dev/sda1", Read: vnode.IORate{Rate: 200e6, IOPS: 5000}, Write: vnode.IORate{Rate: 100e6}},
			{Name: "log", Path: "/var/log", Write: vnode.IORate{IOPS: 100}},
		},
	}
}

func testDisks() map[string]block.Disk {
	return map[string]block.Disk{
		"data": {Major: 8, Name: "sda", Asked: "/dev/sda1", Via: "partition sda1 of sda"},
		"log":  {Major: 254, Name: "vda", Asked: "/var/log", Via: "/var/log is on vda"},
	}
}

func lines(steps []step.Step) string {
	var b strings.Builder
	for _, s := range steps {
		fmt.Fprintf(&b, "%s %s\n", s.Kind(), s)
	}
	return b.String()
}

func TestSteps(t *testing.T) {
	high := fullNode()
	high.Memory.High, high.Memory.Low = 3<<30, 1<<30
	tests := []struct {
		name string
		node *vnode.Node
		host host.Cgroups
		want string
	}{
		{"v1", fullNode(), grouptest.V1(), `
cgroup.limit cpu.weight 50 → cpu.shares=512
cgroup.limit cpu.max 1.5 → cpu.cfs_period_us=100000 cpu.cfs_quota_us=150000
cgroup.limit cpu.set 0-1 → cpuset.cpus=0-1
cgroup.limit memory.max 4GiB → memory.kmem.tcp.limit_in_bytes=1073741824 memory.limit_in_bytes=4294967296 (cgroup v1 counts TCP and UDP buffers apart: at most 1GiB beside it)
cgroup.limit memory.swap 1GiB → memory.memsw.limit_in_bytes=5368709120 (cgroup v1 limits memory and swap together: what memory does not use of it, swap may)
cgroup.limit pids 4096 → pids.max=4096
cgroup.limit hugepages.2MiB 512MiB → hugetlb.2MB.limit_in_bytes=536870912
cgroup.limit hugepages.1GiB 0 → hugetlb.1GB.limit_in_bytes=0
cgroup.limit io.data.read.rate 200MB/s → blkio.throttle.read_bps_device=8:0 200000000 (acts on the whole disk sda (partition sda1 of sda))
cgroup.limit io.data.read.iops 5000 → blkio.throttle.read_iops_device=8:0 5000 (acts on the whole disk sda (partition sda1 of sda))
cgroup.limit io.data.write.rate 100MB/s → blkio.throttle.write_bps_device=8:0 100000000 (acts on the whole disk sda (partition sda1 of sda); cgroup v1 limits direct writes only, not those through the page cache)
cgroup.limit io.log.write.iops 100 → blkio.throttle.write_iops_device=254:0 100 (acts on the whole disk vda (/var/log is on vda); cgroup v1 limits direct writes only, not those through the page cache)
`},
		{"v2", high, grouptest.V2(), `
cgroup.limit cpu.weight 50 → cpu.weight=50
cgroup.limit cpu.max 1.5 → cpu.max=150000 100000
cgroup.limit cpu.set 0-1 → cpuset.cpus=0-1
cgroup.limit memory.max 4GiB → memory.max=4294967296
cgroup.limit memory.high 3GiB → memory.high=3221225472
cgroup.limit memory.low 1GiB → memory.low=1073741824
cgroup.limit memory.swap 1GiB → memory.swap.max=1073741824
cgroup.limit pids 4096 → pids.max=4096
cgroup.limit hugepages.2MiB 512MiB → hugetlb.2MB.max=536870912
cgroup.limit hugepages.1GiB 0 → hugetlb.1GB.max=0
cgroup.limit io.data.read.rate 200MB/s → io.max=8:0 rbps=200000000 (acts on the whole disk sda (partition sda1 of sda))
cgroup.limit io.data.read.iops 5000 → io.max=8:0 riops=5000 (acts on the whole disk sda (partition sda1 of sda))
cgroup.limit io.data.write.rate 100MB/s → io.max=8:0 wbps=100000000 (acts on the whole disk sda (partition sda1 of sda))
cgroup.limit io.log.write.iops 100 → io.max=254:0 wiops=100 (acts on the whole disk vda (/var/log is on vda))
`},
		{"hybrid", &vnode.Node{Name: "wn-001", PIDs: 100, HugePages: vnode.HugePages{2 << 20: 4 << 20}}, grouptest.Hybrid(), `
cgroup.limit pids 100 → pids.max=100
cgroup.limit hugepages.2MiB 4MiB → hugetlb.2MB.max=4194304
`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			steps, err := Steps(tt.node, tt.host, "berth/wn-001", testDisks())
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tt.want, "\n"+lines(steps)); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestRefusals(t *testing.T) {
	with := func(change func(*host.Cgroups), h host.Cgroups) host.Cgroups {
		change(&h)
		return h
	}
	tests := []struct {
		name string
		node vnode.Node
		host host.Cgroups
		kind refuse.Kind
		want string
	}{
		{"memory.low on v1", vnode.Node{Memory: vnode.Memory{Low: 1 << 30}}, grouptest.V1(), refuse.Cannot, "memory.low 1GiB: cgroup v1"},
		{"memory.high on v1", vnode.Node{Memory: vnode.Memory{High: 1 << 30}}, grouptest.V1(), refuse.Cannot, "boot this host with cgroup v2"},
		{
			"swap not counted",
			vnode.Node{Memory: vnode.Memory{Max: 1 << 30, Swap: ptr(vnode.Bytes(0))}},
			with(func(h *host.Cgroups) { h.V1Swap = false }, grouptest.V1()), refuse.Cannot, "swapaccount=1",
		},
		{"swap without memory", vnode.Node{Memory: vnode.Memory{Swap: ptr(vnode.Bytes(0))}}, grouptest.V1(), refuse.Cannot, "give memory.max too"},
		{"no cpu", vnode.Node{CPU: vnode.CPU{Weight: 50}}, hostWithout(grouptest.V1(), "cpu"), refuse.Cannot, "has the cpu controller"},
		{"no memory", vnode.Node{Memory: vnode.Memory{Max: 1 << 30}}, hostWithout(grouptest.V1(), "memory"), refuse.Cannot, "cgroup_enable=memory"},
		{"no io", vnode.Node{IO: []vnode.IO{{Name: "log", Read: vnode.IORate{IOPS: 1}}}}, hostWithout(grouptest.V1(), "blkio"), refuse.Cannot, "has the io controller"},
		{"huge page size", vnode.Node{HugePages: vnode.HugePages{16 << 20: 1 << 30}}, grouptest.V1(), refuse.Cannot, "this host has huge pages of 2MiB and 1GiB"},
		{"huge pages free", vnode.Node{HugePages: vnode.HugePages{2 << 20: 514 << 20}}, grouptest.V1(), refuse.Cannot, "hugepages.2MiB 514MiB: this host has 512MiB of such pages free; reserve more: add 1 to the number in /sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages"},
		{"CPUs", vnode.Node{CPU: vnode.CPU{Set: "2-4"}}, grouptest.V2(), refuse.Cannot, "cpu.set 2-4: this host offers CPUs 0-3"},
		{"NUMA", vnode.Node{CPU: vnode.CPU{NUMA: new(0)}}, grouptest.V2(), refuse.Cannot, "this host has no NUMA nodes"},
		{"weight", vnode.Node{IO: []vnode.IO{{Name: "log", Weight: 50}}}, grouptest.V2(), refuse.Cannot, "io.log.weight"},
		{"too many operations", vnode.Node{IO: []vnode.IO{{Name: "log", Read: vnode.IORate{IOPS: 5e9}}}}, grouptest.V1(), refuse.Invalid, "at most 4294967294"},
		{"one disk twice", vnode.Node{IO: []vnode.IO{{Name: "data"}, {Name: "again"}}}, grouptest.V1(), refuse.Invalid, "io.data and io.again act on one disk, sda"},
	}
	disks := testDisks()
	disks["again"] = disks["data"]
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			_, err := Steps(&tt.node, tt.host, "berth/x", disks)
			if refuse.KindOf(err) != tt.kind || !strings.Contains(fmt.Sprint(err), tt.want) {
				t.Errorf("got %v (kind %d); want %q (kind %d)", err, refuse.KindOf(err), tt.want, tt.kind)
			}
		})
	}
}

func hostWithout(h host.Cgroups, controller string) host.Cgroups {
	delete(h.V1, controller)
	return h
}

func TestChanges(t *testing.T) {
	memory := func(max, swap vnode.Bytes) func(*vnode.Node) {
		return func(n *vnode.Node) {
			n.Memory = vnode.Memory{Max: max}
			if swap >= 0 {
				n.Memory.Swap = &swap
			}
		}
	}
	nothing := func(*vnode.Node) {}
	otherDisk := testDisks()
	otherDisk["data"] = block.Disk{Major: 7, Name: "loop0"}
	tests := []struct {
		name     string
		host     host.Cgroups
		old, new func(*vnode.Node)
		newDisks map[string]block.Disk
		want     string
	}{
		{"nothing", grouptest.V1(), nothing, nothing, nil, ``},
		{"v1 memory raised", grouptest.V1(), memory(1<<30, 0), memory(2<<30, 0), nil, `
memory.swap 0 ⇒ 0: memory.memsw.limit_in_bytes=2147483648
memory.max 1GiB ⇒ 2GiB: memory.kmem.tcp.limit_in_bytes=536870912 memory.limit_in_bytes=2147483648`},
		{"v1 memory lowered", grouptest.V1(), memory(2<<30, 0), memory(1<<30, 0), nil, `
memory.max 2GiB ⇒ 1GiB: memory.kmem.tcp.limit_in_bytes=268435456 memory.limit_in_bytes=1073741824
memory.swap 0 ⇒ 0: memory.memsw.limit_in_bytes=1073741824`},
		{"v1 swap asked", grouptest.V1(), memory(2<<30, -1), memory(1<<30, 0), nil, `
memory.max 2GiB ⇒ 1GiB: memory.kmem.tcp.limit_in_bytes=268435456 memory.limit_in_bytes=1073741824
memory.swap max ⇒ 0: memory.memsw.limit_in_bytes=1073741824`},
		{"v1 swap and memory cleared", grouptest.V1(), memory(2<<30, 0), memory(0, -1), nil, `
memory.swap 0 ⇒ max: memory.memsw.limit_in_bytes=-1
memory.max 2GiB ⇒ max: memory.kmem.tcp.limit_in_bytes=-1 memory.limit_in_bytes=-1`},
		{"v2 memory raised", grouptest.V2(), memory(1<<30, 0), memory(2<<30, 0), nil, `
memory.max 1GiB ⇒ 2GiB: memory.max=2147483648`},
		{"v1 all cleared", grouptest.V1(), nothing, func(n *vnode.Node) { *n = vnode.Node{Name: n.Name, Memory: n.Memory} }, nil, `
cpu.weight 50 ⇒ max: cpu.shares=1024
cpu.max 1.5 ⇒ max: cpu.cfs_period_us=100000 cpu.cfs_quota_us=-1
cpu.set 0-1 ⇒ max: cpuset.cpus=parent's
pids 4096 ⇒ max: pids.max=max
hugepages.2MiB 512MiB ⇒ max: hugetlb.2MB.limit_in_bytes=-1
hugepages.1GiB 0 ⇒ max: hugetlb.1GB.limit_in_bytes=-1
io.data.read.rate 200MB/s ⇒ max: blkio.throttle.read_bps_device=8:0 0
io.data.read.iops 5000 ⇒ max: blkio.throttle.read_iops_device=8:0 0
io.data.write.rate 100MB/s ⇒ max: blkio.throttle.write_bps_device=8:0 0
io.log.write.iops 100 ⇒ max: blkio.throttle.write_iops_device=254:0 0`},
		{"v2 all cleared", grouptest.V2(), nothing, func(n *vnode.Node) { *n = vnode.Node{Name: n.Name} }, nil, `
cpu.weight 50 ⇒ max: cpu.weight=100
cpu.max 1.5 ⇒ max: cpu.max=max 100000
cpu.set 0-1 ⇒ max: cpuset.cpus=
memory.max 4GiB ⇒ max: memory.max=max
memory.swap 1GiB ⇒ max: memory.swap.max=max
pids 4096 ⇒ max: pids.max=max
hugepages.2MiB 512MiB ⇒ max: hugetlb.2MB.max=max
hugepages.1GiB 0 ⇒ max: hugetlb.1GB.max=max
io.data.read.rate 200MB/s ⇒ max: io.max=8:0 rbps=max
io.data.read.iops 5000 ⇒ max: io.max=8:0 riops=max
io.data.write.rate 100MB/s ⇒ max: io.max=8:0 wbps=max
io.log.write.iops 100 ⇒ max: io.max=254:0 wiops=max`},
		{"another disk", grouptest.V2(), nothing, nothing, otherDisk, `
io.data.read.rate 200MB/s ⇒ max: io.max=8:0 rbps=max
io.data.read.iops 5000 ⇒ max: io.max=8:0 riops=max
io.data.write.rate 100MB/s ⇒ max: io.max=8:0 wbps=max
io.data.read.rate max ⇒ 200MB/s: io.max=7:0 rbps=200000000
io.data.read.iops max ⇒ 5000: io.max=7:0 riops=5000
io.data.write.rate max ⇒ 100MB/s: io.max=7:0 wbps=100000000`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			limits := func(change func(*vnode.Node), disks map[string]block.Disk) []*Limit {
				n := fullNode()
				change(n)
				l, err := Limits(n, tt.host, "berth/wn-001", disks)
				if err != nil {
					t.Fatal(err)
				}
				return l
			}
			newDisks := tt.newDisks
			if newDisks == nil {
				newDisks = testDisks()
			}
			got := ""
			for _, s := range Changes(limits(tt.old, testDisks()), limits(tt.new, newDisks)) {
				text, _, _ := strings.Cut(s.String(), " (")
				got += "\n" + text
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestJournal(t *testing.T) {
	limits, err := Limits(fullNode(), grouptest.V2(), "berth/wn-001", testDisks())
	testkit.Must(t, err)
	grouptest.Journal(t, Kinds(), limits[0], Changes(limits, nil)[0])
}
