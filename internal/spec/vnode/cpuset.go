package vnode

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// CPUSet is a list of CPUs in the kernel's form, sorted and merged: "0-1,4". Make one with ParseCPUSet or NewCPUSet.
type CPUSet string

// maxCPUs is the most CPUs that a Linux kernel can be built for (CONFIG_NR_CPUS on x86-64).
const maxCPUs = 8192

// ParseCPUSet reads a list of CPUs and ranges and returns it in the kernel's form. "" is the empty set and means not
// set.
func ParseCPUSet(s string) (CPUSet, error) {
	if s == "" {
		return "", nil
	}
	var cpus []int
	for part := range strings.SplitSeq(s, ",") {
		from, to, isRange := strings.Cut(part, "-")
		if !isRange {
			to = from
		}
		first, ok1 := parseCPU(from)
		last, ok2 := parseCPU(to)
		if !ok1 || !ok2 || first > last {
			return "", fmt.Errorf("%q is not a list of CPUs: numbers 0..%d and ranges, for example 0-1,4", s, maxCPUs-1)
		}
		for cpu := first; cpu <= last; cpu++ {
			cpus = append(cpus, cpu)
		}
		if len(cpus) > 2*maxCPUs {
			return "", fmt.Errorf("a list of CPUs names too many of them twice")
		}
	}
	return NewCPUSet(cpus...), nil
}

func parseCPU(s string) (int, bool) {
	n, err := strconv.Atoi(s)
	return n, err == nil && isDigits(s) && n < maxCPUs
}

// NewCPUSet returns the set of the CPUs given, in any order.
func NewCPUSet(cpus ...int) CPUSet {
	cpus = slices.Clone(cpus)
	slices.Sort(cpus)
	cpus = slices.Compact(cpus)
	var ranges []string
	for len(cpus) > 0 {
		n := 1
		for n < len(cpus) && cpus[n] == cpus[0]+n {
			n++
		}
		text := strconv.Itoa(cpus[0])
		if n > 1 {
			text += "-" + strconv.Itoa(cpus[n-1])
		}
		ranges, cpus = append(ranges, text), cpus[n:]
	}
	return CPUSet(strings.Join(ranges, ","))
}

// List returns the CPUs in ascending order. It returns none if the set is empty or was not made by ParseCPUSet.
func (c CPUSet) List() []int {
	var cpus []int
	for part := range strings.SplitSeq(string(c), ",") {
		from, to, isRange := strings.Cut(part, "-")
		if !isRange {
			to = from
		}
		first, ok1 := parseCPU(from)
		last, ok2 := parseCPU(to)
		if !ok1 || !ok2 {
			return nil
		}
		for cpu := first; cpu <= last; cpu++ {
			cpus = append(cpus, cpu)
		}
	}
	return cpus
}

// UnmarshalText reads the text with ParseCPUSet.
func (c *CPUSet) UnmarshalText(t []byte) (err error) { *c, err = ParseCPUSet(string(t)); return }
