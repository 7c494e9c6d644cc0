package cgroup

import (
	"maps"
	"slices"
	"strconv"
	"strings"

	"berth/internal/host"
	"berth/internal/spec/vnode"
	"berth/internal/sys/proof"
	"berth/internal/sys/refuse"
)

// numaAsks returns the limits to CPUs and memory nodes: the CPUs of cpu.set, those of the NUMA node cpu.numa, or those in both.
func numaAsks(c vnode.CPU, h host.Cgroups) ([]ask, error) {
	set := ask{key: "cpu.set", kind: proof.CPUSet, controller: "cpuset", asked: string(c.Set), cpus: c.Set}
	switch {
	case c.NUMA == nil && c.Set == "":
		return nil, nil
	case c.NUMA == nil:
		return []ask{set}, nil
	}
	asked := strconv.Itoa(*c.NUMA)
	near, ok := h.NUMA[*c.NUMA]
	if !ok {
		return nil, refuse.Cannotf("", "cpu.numa %s: this host has %s", asked, numaNodes(h))
	}
	if !near.Memory || near.CPUs == "" {
		return nil, refuse.Cannotf("name CPUs in cpu.set", "cpu.numa %s: NUMA node %s of this host lacks CPUs or memory", asked, asked)
	}
	cpus := vnode.CPUSet(near.CPUs)
	if h.CPUs != "" { // fewer in a container, or with CPUs offline
		cpus = both(cpus, vnode.CPUSet(h.CPUs))
	}
	set.asked, set.note = string(cpus), "the CPUs of NUMA node "+asked
	if c.Set != "" {
		cpus = both(cpus, c.Set)
		set.asked, set.note = string(c.Set), "those of them that NUMA node "+asked+" has"
	}
	if cpus == "" {
		return nil, refuse.Cannotf("", "cpu.numa %s with cpu.set %s: no CPU is in both; NUMA node %s has CPUs %s", asked, c.Set, asked, near.CPUs)
	}
	set.cpus = cpus
	mems := ask{key: "cpu.numa", kind: proof.NUMA, controller: "cpuset", asked: asked, cpus: vnode.CPUSet(asked)}
	return []ask{set, mems}, nil
}

// both returns the intersection of two sets.
func both(a, b vnode.CPUSet) vnode.CPUSet {
	in := b.List()
	return vnode.NewCPUSet(slices.DeleteFunc(a.List(), func(cpu int) bool { return !slices.Contains(in, cpu) })...)
}

func numaNodes(h host.Cgroups) string {
	var names []string
	for _, n := range slices.Sorted(maps.Keys(h.NUMA)) {
		names = append(names, strconv.Itoa(n))
	}
	switch len(names) {
	case 0:
		return "no NUMA nodes"
	case 1:
		return "NUMA node " + names[0] + " alone"
	}
	return "NUMA nodes " + strings.Join(names, ", ")
}
