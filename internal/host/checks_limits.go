package host

import (
	"fmt"
	"path/filepath"
	"strconv"
	"strings"
)

// limits checks what limits and weights need.
func (d *doctor) limits() []Check {
	checks := []Check{d.cgroups()}
	for _, w := range []struct {
		v1, v2, option, why string
		mandatory           bool
	}{
		{"cpu", "cpu", "CFS_BANDWIDTH", "cpu.weight and cpu.max", false},
		{"cpuset", "cpuset", "CPUSETS", "cpu.set and cpu.numa", false},
		{"memory", "memory", "MEMCG", "memory limits; without them one node can take all memory of the host", false},
		{"pids", "pids", "CGROUP_PIDS", "pids; without it a fork bomb takes the host", false},
		{"blkio", "io", "BLK_CGROUP", "block I/O limits", false},
		{"hugetlb", "hugetlb", "CGROUP_HUGETLB", "limits of huge pages", false},
		{"devices", "", "CGROUP_DEVICE", "the wall between a node and the host's devices", true},
		{"freezer", "", "CGROUP_FREEZER", "the way to end all processes of a node at once", true},
	} {
		c := d.controller(w.v1, w.v2, w.option)
		c.Why, c.Mandatory = "honours "+w.why, w.mandatory
		if w.mandatory {
			c.Why = "it is " + w.why
		}
		checks = append(checks, c)
	}
	checks = append(checks, d.swapAccounting(), d.hugePages(), d.hugePageMount())
	return append(checks, d.disks()...)
}

func (d *doctor) cgroups() Check {
	cg := d.facts.Cgroups
	const better = "v2 (v1 has no memory.low and throttles direct I/O only)"
	c := Check{
		Name: "cgroups", State: OK, Found: cg.Mode(), Wanted: better, Mandatory: true,
		Why: "limits are set and processes found by them",
	}
	switch {
	case cg.V2 == "" && len(cg.V1) == 0:
		c.State, c.Found, c.Wanted = Off, "none mounted", "cgroup2"
		c.Remedy = "mount -t cgroup2 none /sys/fs/cgroup"
	case cg.Mode() == "v2":
		c.Found, c.Wanted = "v2 at "+cg.V2, ""
	case cg.Mode() == "hybrid":
		c.Found = fmt.Sprintf("hybrid: v1, with %s on v2", strings.Join(cg.V2Controllers, " "))
	}
	return c
}

// controller checks one controller by its names on v1 and v2; v2 is "" where v2 has the function without a controller.
func (d *doctor) controller(v1, v2, option string) Check {
	c := Check{Name: "cgroup " + v1, State: OK}
	if v2 != "" && v2 != v1 {
		c.Name = "cgroup " + v1 + "/" + v2
	}
	cg := d.facts.Cgroups
	known, enabled := d.v1Controller(v1)
	switch {
	case cg.V1[v1] != "":
		c.Found = "v1 at " + cg.V1[v1]
	case v2 != "" && cg.Has(v2) == "v2":
		c.Found = "v2"
	case v2 == "" && cg.Mode() == "v2":
		c.Found = "v2, part of every group"
		if v1 == "devices" && d.built != nil && d.built["CGROUP_BPF"] != "y" {
			c.State, c.Found, c.Wanted = Lacks, "v2 without device programs", "CONFIG_CGROUP_BPF=y"
		}
	case known && !enabled:
		c.State, c.Found = Off, "switched off at boot"
		c.Remedy = "# put cgroup_enable=" + v1 + " on the kernel's command line, reboot"
	case known && cg.Mode() != "v2":
		dir := "/sys/fs/cgroup/" + v1
		c.State, c.Found = Off, "not mounted"
		c.Remedy = fmt.Sprintf("mkdir -p %s\nmount -t cgroup -o %s cgroup %s", dir, v1, dir)
	case d.built["CGROUPS"] == "y" && d.built[option] == "y" && v1 != v2:
		c.State, c.Found = Off, "built, but on no hierarchy"
	default:
		c.State, c.Found, c.Remedy = Lacks, "none", "# boot a kernel with CONFIG_"+option+"=y"
	}
	return c
}

// v1Controller reports what /proc/cgroups says of a controller.
func (d *doctor) v1Controller(name string) (known, enabled bool) {
	for line := range strings.Lines(d.text("/proc/cgroups")) {
		if f := strings.Fields(line); len(f) == 4 && f[0] == name {
			return true, f[3] == "1"
		}
	}
	return false, false
}

func (d *doctor) swapAccounting() Check {
	c := Check{Name: "swap accounting", State: OK, Found: "on", Why: "honours memory.swap"}
	cg := d.facts.Cgroups
	switch {
	case cg.Has("memory") == "":
		c.State, c.Found, c.Wanted = Lacks, "no memory controller", "the memory controller"
	case cg.V1["memory"] != "" && !d.exists(filepath.Join(cg.V1["memory"], "memory.memsw.limit_in_bytes")):
		c.State, c.Found, c.Remedy = Off, "off", "# add swapaccount=1 to the kernel's command line, reboot"
	case d.meminfo()["SwapTotal"] == 0:
		c.Found = "on; the host has no swap"
	}
	return c
}

func (d *doctor) hugePages() Check {
	c := Check{Name: "huge pages", State: Off, Found: "none reserved", Wanted: "some, if nodes want huge pages", Why: "hugepages of a spec are taken from the host's reserve"}
	dirs, _ := filepath.Glob(d.at("/sys/kernel/mm/hugepages/hugepages-*")) // the pattern is constant
	if len(dirs) == 0 {
		c.State, c.Found = d.built.absent("HUGETLBFS"), "none"
		return c
	}
	var found []string
	for _, dir := range dirs {
		n, err := strconv.Atoi(d.text(filepath.Join(dir, "nr_hugepages")))
		if err == nil && n > 0 {
			size := strings.TrimPrefix(filepath.Base(dir), "hugepages-")
			found = append(found, fmt.Sprintf("%d of %s, %s free", n, size, d.text(filepath.Join(dir, "free_hugepages"))))
		}
	}
	if len(found) > 0 {
		c.State, c.Found, c.Wanted = OK, strings.Join(found, "; "), ""
		return c
	}
	c.Remedy = "sysctl -w vm.nr_hugepages=256   # 512 MiB of 2 MiB pages"
	return c
}

// hugePageMount checks whether programs that ask for huge pages by files find where.
func (d *doctor) hugePageMount() Check {
	c := Check{Name: "hugetlbfs", State: OK, Why: "programs that take huge pages by files, as DPDK does, need it mounted; mmap does not"}
	var at []string
	for line := range strings.Lines(d.text("/proc/self/mountinfo")) {
		before, after, _ := strings.Cut(line, " - ")
		if f := strings.Fields(before); strings.HasPrefix(after, "hugetlbfs ") && len(f) > 4 {
			at = append(at, f[4])
		}
	}
	switch {
	case len(at) > 0:
		c.Found = "mounted at " + strings.Join(at, ", ")
	case d.exists("/sys/kernel/mm/hugepages"):
		c.State, c.Found = Off, "not mounted"
		c.Remedy = "mkdir -p /dev/hugepages\nmount -t hugetlbfs hugetlbfs /dev/hugepages"
	default:
		c.State, c.Found = d.built.absent("HUGETLBFS"), "none"
	}
	return c
}
