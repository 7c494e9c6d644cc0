package cgroup

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"

	"berth/internal/block"
	"berth/internal/host"
	"berth/internal/refuse"
	"berth/internal/vnode"
)

// ask is one limit as a spec asks for it, before a cgroup version is chosen.
type ask struct {
	key        string // as berth set takes it: "io.data.read.rate"
	what       string // the key without names: "io.read.rate"
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
	add := func(given bool, key, controller string, value int64, asked string) {
		if given {
			all = append(all, ask{key: key, what: key, controller: controller, asked: asked, value: value})
		}
	}
	c, m := n.CPU, n.Memory
	add(c.Weight != 0, "cpu.weight", "cpu", int64(c.Weight), strconv.Itoa(c.Weight))
	add(c.Max != 0, "cpu.max", "cpu", int64(c.Max), c.Max.String())
	numa, err := numaAsks(c, h)
	if err != nil {
		return nil, err
	}
	all = append(all, numa...)
	if m.Max != 0 {
		all = append(all, ask{key: "memory.max", what: "memory.max", controller: "memory", asked: m.Max.String(), value: int64(m.Max), sockets: h.V1Sockets})
	}
	add(m.High != 0, "memory.high", "memory", int64(m.High), m.High.String())
	add(m.Low != 0, "memory.low", "memory", int64(m.Low), m.Low.String())
	add(m.Min != 0, "memory.min", "memory", int64(m.Min), m.Min.String())
	if low := n.ProtectedMemory(); low != 0 && h.Has("memory") == "v2" {
		all = append(all, ask{
			key: "memory.low", what: "memory.low", controller: "memory", asked: low.String(), value: int64(low),
			note: fmt.Sprintf("from class %s: %d %% of memory.max", n.Class, n.Class.Standing().LowShare),
		})
	}
	if m.Swap != nil {
		all = append(all, ask{
			key: "memory.swap", what: "memory.swap", controller: "memory", asked: m.Swap.String(),
			value: int64(*m.Swap), max: int64(m.Max),
		})
	}
	add(n.PIDs != 0, "pids", "pids", int64(n.PIDs), strconv.Itoa(n.PIDs))
	for _, size := range slices.Sorted(maps.Keys(n.HugePages)) {
		all = append(all, ask{
			key: "hugepages." + size.String(), what: "hugepages", controller: "hugetlb",
			asked: n.HugePages[size].String(), value: int64(n.HugePages[size]), page: size,
		})
	}
	io, err := ioAsks(n, disks)
	if err != nil {
		return nil, err
	}
	all = append(all, io...)
	return all, refuseAny(all, h)
}

// unifiedRemedy says how to get the limits that only cgroup v2 has.
const unifiedRemedy = "boot this host with cgroup v2 alone (kernel command line: systemd.unified_cgroup_hierarchy=1)"

// refuseAny refuses limits that this host cannot enforce, before anything is changed.
func refuseAny(all []ask, h host.Cgroups) error {
	for _, a := range all {
		version := h.Has(v1Name(a.controller))
		if version == "" {
			version = h.Has(a.controller)
		}
		if err := refuseOne(a, h, version); err != nil {
			return err
		}
	}
	return nil
}

func refuseOne(a ask, h host.Cgroups, version string) error {
	no := func(remedy, format string, args ...any) error {
		return refuse.Cannotf(remedy, a.key+" "+a.asked+": "+format, args...)
	}
	switch {
	case version == "" && a.controller == "memory":
		return no("boot with cgroup_enable=memory on the kernel command line", "no cgroup hierarchy of this host has the memory controller")
	case version == "":
		return no("mount a cgroup hierarchy with it, or boot a kernel that has it",
			"no cgroup hierarchy of this host has the %s controller", a.controller)
	case version == "v1" && (a.what == "memory.high" || a.what == "memory.low" || a.what == "memory.min"):
		return no(unifiedRemedy, "cgroup v1, which has the memory controller here, does not know it")
	case version == "v1" && a.what == "memory.swap" && !h.V1Swap:
		return no("boot with swapaccount=1 on the kernel command line", "this host does not count swap (no memory.memsw.limit_in_bytes)")
	case version == "v1" && a.what == "memory.swap" && a.max == 0:
		return no("give memory.max too", "cgroup v1 limits swap only together with memory")
	case a.what == "hugepages" && !slices.Contains(h.HugePages, int64(a.page)):
		return no("", "this host has huge pages of %s", sizes(h.HugePages))
	case a.what == "cpu.set" && h.CPUs != "" && !subset(a.cpus, vnode.CPUSet(h.CPUs)):
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

// v1Name is the v1 name of a controller.
func v1Name(controller string) string {
	if controller == "io" {
		return "blkio"
	}
	return controller
}
