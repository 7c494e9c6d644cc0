package cgroup

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"os"
	"slices"
	"strconv"
	"strings"

	"berth/internal/host"
	"berth/internal/host/block"
	"berth/internal/host/group"
	"berth/internal/spec/vnode"
	"berth/internal/sys/proof"
	"berth/internal/sys/refuse"
)

// A limit goes through four functions of this file: asks takes it from the spec, refuse says which hosts cannot enforce it, onV1 and onV2
// name the control files. inside (limit.go) lists those that are also written where programs in the node look.

// ask is one limit as a spec asks for it, before a cgroup version is chosen.
type ask struct {
	key        string // as berth set takes it: "io.data.read.rate"
	kind       proof.Kind
	controller string // the one that it needs, by its v2 name
	asked      string // as the spec writes it
	value      int64  // bytes, bytes per second, thousandths of a CPU, or a count
	cpus       vnode.CPUSet
	note       string      // where it comes from, if not from the spec
	page       vnode.Bytes // size of huge pages
	disk       block.Disk
	engine     vnode.Engine // of a weight: the engine that the spec asks for
	rated      bool         // of a weight: the io entry has rates too
	max        int64        // memory.max, of memory.swap
	sockets    bool         // of memory.max: this host limits socket memory separately
}

// maxIOPS is the greatest limit of operations per second. The kernel keeps it in 32 bits: v1 silently cuts a greater
// one (measured: 5000000000 becomes 705032704), and a value with all bits set means no limit.
const maxIOPS = math.MaxUint32 - 1

// asks lists the limits of a node in the order in which the kernel takes them: memory.max before memory.swap.
func asks(n *vnode.Node, h host.Cgroups, disks map[string]block.Disk) ([]ask, error) {
	var all []ask
	add := func(given bool, kind proof.Kind, controller string, value int64, asked string) {
		if given {
			all = append(all, ask{key: string(kind), kind: kind, controller: controller, asked: asked, value: value})
		}
	}
	c, m := n.CPU, n.Memory
	add(c.Weight != 0, proof.CPUWeight, "cpu", int64(c.Weight), strconv.Itoa(c.Weight))
	add(c.Max != 0, proof.CPUMax, "cpu", int64(c.Max), c.Max.String())
	numa, err := numaAsks(c, h)
	if err != nil {
		return nil, err
	}
	all = append(all, numa...)
	if m.Max != 0 {
		all = append(all, ask{key: "memory.max", kind: proof.MemoryMax, controller: "memory", asked: m.Max.String(), value: int64(m.Max), sockets: h.V1Sockets})
	}
	add(m.High != 0, proof.MemoryHigh, "memory", int64(m.High), m.High.String())
	add(m.Low != 0, proof.MemoryLow, "memory", int64(m.Low), m.Low.String())
	add(m.Min != 0, proof.MemoryMin, "memory", int64(m.Min), m.Min.String())
	if low := n.ProtectedMemory(); low != 0 && h.Has("memory") == "v2" {
		all = append(all, ask{
			key: "memory.low", kind: proof.MemoryLow, controller: "memory", asked: low.String(), value: int64(low),
			note: fmt.Sprintf("from class %s: %d %% of memory.max", n.Class, n.Class.Standing().LowShare),
		})
	}
	if m.Swap != nil {
		all = append(all, ask{
			key: "memory.swap", kind: proof.MemorySwap, controller: "memory", asked: m.Swap.String(),
			value: int64(*m.Swap), max: int64(m.Max),
		})
	}
	add(n.PIDs != 0, proof.PIDs, "pids", int64(n.PIDs), strconv.Itoa(n.PIDs))
	for _, size := range slices.Sorted(maps.Keys(n.HugePages)) {
		all = append(all, ask{
			key: proof.HugePages.Key(size.String()), kind: proof.HugePages, controller: "hugetlb",
			asked: n.HugePages[size].String(), value: int64(n.HugePages[size]), page: size,
		})
	}
	io, err := ioAsks(n, disks)
	if err != nil {
		return nil, err
	}
	all = append(all, io...)
	for _, a := range all {
		if err := a.refuse(h); err != nil {
			return nil, err
		}
	}
	return all, nil
}

// unifiedRemedy says how to get the limits that only cgroup v2 has.
const unifiedRemedy = "boot this host with cgroup v2 alone (kernel command line: systemd.unified_cgroup_hierarchy=1)"

// refuse refuses a limit that this host cannot enforce, before anything is changed.
func (a ask) refuse(h host.Cgroups) error {
	version := cmp.Or(h.Has(group.V1Name(a.controller)), h.Has(a.controller))
	no := func(remedy, format string, args ...any) error {
		return refuse.Cannotf(remedy, a.key+" "+a.asked+": "+format, args...)
	}
	switch {
	case version == "" && a.controller == "memory":
		return no("boot with cgroup_enable=memory on the kernel command line", "no cgroup hierarchy of this host has the memory controller")
	case version == "":
		return no("mount a cgroup hierarchy with it, or boot a kernel that has it",
			"no cgroup hierarchy of this host has the %s controller", a.controller)
	case version == "v1" && (a.kind == proof.MemoryHigh || a.kind == proof.MemoryLow || a.kind == proof.MemoryMin):
		return no(unifiedRemedy, "cgroup v1, which has the memory controller here, does not know it")
	case version == "v1" && a.kind == proof.MemorySwap && !h.V1Swap:
		return no("boot with swapaccount=1 on the kernel command line", "this host does not count swap (no memory.memsw.limit_in_bytes)")
	case version == "v1" && a.kind == proof.MemorySwap && a.max == 0:
		return no("give memory.max too", "cgroup v1 limits swap only together with memory")
	case a.kind == proof.HugePages && !slices.Contains(h.HugePages, int64(a.page)):
		return no("", "this host has huge pages of %s", sizes(h.HugePages))
	case a.kind == proof.CPUSet && h.CPUs != "" && !subset(a.cpus, vnode.CPUSet(h.CPUs)):
		return no("", "this host offers CPUs %s", h.CPUs)
	}
	return nil
}

func sizes(bytes []int64) string {
	if len(bytes) == 0 {
		return "no size"
	}
	names := make([]string, len(bytes))
	for i, b := range bytes {
		names[i] = vnode.Bytes(b).String()
	}
	return strings.Join(names, " and ")
}

func subset(part, whole vnode.CPUSet) bool {
	all := whole.List()
	return !slices.ContainsFunc(part.List(), func(cpu int) bool { return !slices.Contains(all, cpu) })
}

// ioAsks lists the limits of block devices.
func ioAsks(n *vnode.Node, disks map[string]block.Disk) ([]ask, error) {
	var all []ask
	limited, shared := map[string]string{}, map[string]string{} // device number to the io entry that has it
	for _, io := range n.IO {
		if io.Filesystem != "" { // its file servers hold it
			continue
		}
		disk, ok := disks[io.Name]
		if !ok {
			return nil, fmt.Errorf("plan io.%s: its disk was not looked up", io.Name)
		}
		if err := once(limited, io.Name, disk.Number(), disk.Name); err != nil {
			return nil, err
		}
		if io.Weight != 0 {
			for _, q := range disk.Queues {
				if err := once(shared, io.Name, q.Number(), q.Name); err != nil {
					return nil, err
				}
			}
			all = append(all, ask{
				key: proof.IOWeight.Key(io.Name), kind: proof.IOWeight, controller: "io", asked: strconv.Itoa(io.Weight),
				value: int64(io.Weight), disk: disk, engine: io.Engine, rated: io.Read != vnode.IORate{} || io.Write != vnode.IORate{},
			})
		}
		rates, err := rateAsks(io, disk)
		if err != nil {
			return nil, err
		}
		all = append(all, rates...)
	}
	return all, nil
}

// once refuses a second io entry with the same device number. Limits are per device, so a volume and its disk may both
// have some. Weights are per queue, so a volume and its disk cannot both have one.
func once(entry map[string]string, name, number, disk string) error {
	if other, twice := entry[number]; twice {
		return refuse.Invalidf("io.%s and io.%s act on one disk, %s: the kernel has one limit for a disk", other, name, disk)
	}
	entry[number] = name
	return nil
}

func rateAsks(io vnode.IO, disk block.Disk) ([]ask, error) {
	var all []ask
	for _, d := range []struct {
		rate, iops proof.Kind
		vnode.IORate
	}{{proof.IOReadRate, proof.IOReadIOPS, io.Read}, {proof.IOWriteRate, proof.IOWriteIOPS, io.Write}} {
		add := func(kind proof.Kind, value int64, asked string) {
			all = append(all, ask{key: kind.Key(io.Name), kind: kind, controller: "io", disk: disk, value: value, asked: asked})
		}
		if d.Rate != 0 {
			add(d.rate, int64(d.Rate), d.Rate.String())
		}
		if d.IOPS > maxIOPS {
			return nil, refuse.Invalidf("%s %d: the kernel counts at most %d operations a second", d.iops.Key(io.Name), d.IOPS, maxIOPS)
		}
		if d.IOPS != 0 {
			add(d.iops, int64(d.IOPS), strconv.Itoa(d.IOPS))
		}
	}
	return all, nil
}

// hold is how one cgroup version enforces an asked limit.
type hold struct {
	mechanism string
	writes    []group.Write
	note      string // the part that the mechanism does not cover
}

// period is the period of CPU quotas in microseconds: the kernel's default.
const period = 100_000

// onV1 returns how cgroup v1 enforces a limit. file returns the path of a control file of the node's group.
func onV1(a ask, file func(name string) string) (hold, error) {
	number := strconv.FormatInt(a.value, 10)
	throttle := func(name, note string) hold {
		return hold{"blkio.throttle", []group.Write{{File: file(name), Device: a.disk.Number(), Value: number, None: "0"}}, note}
	}
	const directOnly = "cgroup v1 limits direct writes only, not those through the page cache"
	page := int64(os.Getpagesize())
	switch a.kind {
	case proof.CPUWeight:
		return hold{"cpu.shares", []group.Write{{File: file("cpu.shares"), Value: strconv.FormatInt(group.Shares(a.value), 10), None: "1024"}}, ""}, nil
	case proof.CPUMax:
		return hold{"cfs quota", []group.Write{
			{File: file("cpu.cfs_period_us"), Value: strconv.Itoa(period), None: strconv.Itoa(period)},
			{File: file("cpu.cfs_quota_us"), Value: strconv.FormatInt(a.value*period/1000, 10), None: "-1"},
		}, ""}, nil
	case proof.CPUSet:
		return hold{"cpuset", []group.Write{{File: file("cpuset.cpus"), Value: string(a.cpus), None: group.AsParent}}, a.note}, nil
	case proof.NUMA:
		return hold{"cpuset", []group.Write{{File: file("cpuset.mems"), Value: string(a.cpus), None: group.AsParent}}, a.note}, nil
	case proof.MemoryMax:
		return v1Memory(a, file), nil
	case proof.MemorySwap:
		return hold{
			"memory.memsw",
			[]group.Write{{
				File:  file("memory.memsw.limit_in_bytes"),
				Value: strconv.FormatInt(a.value+a.max, 10), None: "-1", Unit: page,
			}},
			"cgroup v1 limits memory and swap together: what memory does not use of it, swap may",
		}, nil
	case proof.PIDs:
		return hold{"pids.max", []group.Write{{File: file("pids.max"), Value: number, None: "max"}}, ""}, nil
	case proof.HugePages:
		return hold{"hugetlb", []group.Write{{File: file("hugetlb." + hugeName(a.page) + ".limit_in_bytes"), Value: number, None: "-1", Unit: int64(a.page)}}, ""}, nil
	case proof.IOReadRate:
		return throttle("blkio.throttle.read_bps_device", ""), nil
	case proof.IOReadIOPS:
		return throttle("blkio.throttle.read_iops_device", ""), nil
	case proof.IOWriteRate:
		return throttle("blkio.throttle.write_bps_device", directOnly), nil
	case proof.IOWriteIOPS:
		return throttle("blkio.throttle.write_iops_device", directOnly), nil
	}
	return hold{}, unknown(a, "v1")
}

// v1Memory limits a node's memory and, separately, that of its TCP and UDP sockets, which v1 does not count as memory. The
// limit of the sockets comes first: berth show prints the last write.
func v1Memory(a ask, file func(name string) string) hold {
	page := int64(os.Getpagesize())
	memory := group.Write{File: file("memory.limit_in_bytes"), Value: strconv.FormatInt(a.value, 10), None: "-1", Unit: page}
	if !a.sockets {
		return hold{"memory.limit_in_bytes", []group.Write{memory}, "this kernel neither counts nor limits what sockets hold"}
	}
	sockets := socketBytes(a.value)
	return hold{
		"memory.limit_in_bytes",
		[]group.Write{{File: file("memory.kmem.tcp.limit_in_bytes"), Value: strconv.FormatInt(sockets, 10), None: "-1", Unit: page}, memory},
		"cgroup v1 counts TCP and UDP buffers apart: at most " + vnode.Bytes(sockets).String() + " beside it",
	}
}

// socketBytes is how much the sockets of a node may hold on v1: a quarter of its memory, but at least what one fast
// connection needs.
func socketBytes(memory int64) int64 { return max(memory/4, 4<<20) }

// onV2 returns how cgroup v2 enforces a limit (Documentation/admin-guide/cgroup-v2.rst). file is as in onV1.
func onV2(a ask, file func(name string) string) (hold, error) {
	number := strconv.FormatInt(a.value, 10)
	most := func(param string) hold {
		return hold{"io.max", []group.Write{{File: file("io.max"), Device: a.disk.Number(), Param: param, Value: number, None: "max"}}, ""}
	}
	page := int64(os.Getpagesize())
	switch a.kind {
	case proof.CPUWeight:
		return hold{"cpu.weight", []group.Write{{File: file("cpu.weight"), Value: number, None: "100"}}, ""}, nil
	case proof.CPUMax:
		return hold{"cpu.max", []group.Write{{
			File:  file("cpu.max"),
			Value: fmt.Sprintf("%d %d", a.value*period/1000, period), None: fmt.Sprintf("max %d", period),
		}}, ""}, nil
	case proof.NUMA:
		return hold{"cpuset", []group.Write{{File: file("cpuset.mems"), Value: string(a.cpus), From: file("cpuset.mems.effective")}}, a.note}, nil
	case proof.CPUSet:
		// cpuset.cpus accepts CPUs that do not exist; cpuset.cpus.effective has those in force
		return hold{"cpuset", []group.Write{{File: file("cpuset.cpus"), Value: string(a.cpus), From: file("cpuset.cpus.effective")}}, a.note}, nil
	case proof.MemoryMax, proof.MemoryHigh:
		return hold{string(a.kind), []group.Write{{File: file(string(a.kind)), Value: number, None: "max", Unit: page}}, ""}, nil
	case proof.MemoryLow, proof.MemoryMin:
		return hold{string(a.kind), []group.Write{{File: file(string(a.kind)), Value: number, None: "0", Unit: page, Sum: true}}, a.note}, nil
	case proof.MemorySwap:
		return hold{"memory.swap.max", []group.Write{{File: file("memory.swap.max"), Value: number, None: "max", Unit: page}}, ""}, nil
	case proof.PIDs:
		return hold{"pids.max", []group.Write{{File: file("pids.max"), Value: number, None: "max"}}, ""}, nil
	case proof.HugePages:
		return hold{"hugetlb", []group.Write{{File: file("hugetlb." + hugeName(a.page) + ".max"), Value: number, None: "max", Unit: int64(a.page)}}, ""}, nil
	case proof.IOReadRate:
		return most("rbps"), nil
	case proof.IOReadIOPS:
		return most("riops"), nil
	case proof.IOWriteRate:
		return most("wbps"), nil
	case proof.IOWriteIOPS:
		return most("wiops"), nil
	}
	return hold{}, unknown(a, "v2")
}

// unknown returns the error for a kind of limit that a cgroup version does not know.
func unknown(a ask, version string) error {
	return fmt.Errorf("%s: cgroup %s knows no limit of the kind %q", a.key, version, a.kind)
}

// hugeName is a huge page size as the hugetlb controller names it (mm/hugetlb_cgroup.c: mem_fmt).
func hugeName(size vnode.Bytes) string {
	switch {
	case size >= 1<<30:
		return strconv.FormatInt(int64(size>>30), 10) + "GB"
	case size >= 1<<20:
		return strconv.FormatInt(int64(size>>20), 10) + "MB"
	}
	return strconv.FormatInt(int64(size>>10), 10) + "KB"
}
