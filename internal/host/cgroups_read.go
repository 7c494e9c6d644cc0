package host

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/moby/sys/mountinfo"

	"berth/internal/spec/vnode"
	"berth/internal/sys/file"
)

// ReadCgroups reads the cgroup mounts of this process from proc ("/proc" on a real host), and which controllers they offer.
func ReadCgroups(proc string) (Cgroups, error) {
	h := New()
	h.Proc = proc
	return h.Cgroups()
}

// Cgroups reads where the cgroup hierarchies are, and which controllers they offer.
func (h Host) Cgroups() (Cgroups, error) {
	c, err := h.mounted()
	if err == nil {
		c.readOffers(h)
	}
	return c, err
}

// ReadMounted is ReadCgroups without what the hierarchies offer: enough to find a group that is there.
func ReadMounted() (Cgroups, error) { return New().mounted() }

func (h Host) mounted() (Cgroups, error) {
	c := Cgroups{V1: map[string]string{}}
	f, err := os.Open(filepath.Join(h.Proc, "self/mountinfo"))
	if err != nil {
		return c, fmt.Errorf("read mounts: %w", err)
	}
	defer f.Close()
	mounts, err := mountinfo.GetMountsFromReader(f, func(m *mountinfo.Info) (skip, stop bool) {
		return m.FSType != "cgroup" && m.FSType != "cgroup2", false
	})
	if err != nil {
		return c, fmt.Errorf("read mounts: %w", err)
	}
	for _, m := range mounts {
		if m.FSType == "cgroup2" {
			c.V2 = m.Mountpoint
			continue
		}
		for opt := range strings.SplitSeq(m.VFSOptions, ",") {
			switch opt {
			case "rw", "ro", "xattr", "clone_children", "noprefix", "cpuset_v2_mode", "none", "all", "favordynmods":
			default:
				if !strings.HasPrefix(opt, "release_agent=") {
					c.V1[opt] = m.Mountpoint
				}
			}
		}
	}
	if c.V2 != "" {
		b, err := os.ReadFile(filepath.Join(h.at(c.V2), "cgroup.controllers"))
		if err != nil {
			return c, fmt.Errorf("read controllers of %s: %w", c.V2, err)
		}
		c.V2Controllers = strings.Fields(string(b))
	}
	return c, nil
}

// readOffers reads what the mounted controllers offer. A file that is not there means that the kernel lacks it.
func (c *Cgroups) readOffers(h Host) {
	text := func(path ...string) string { return h.text(filepath.Join(path...)) }
	if m := c.V1["memory"]; m != "" {
		c.V1Swap = text(m, "memory.memsw.limit_in_bytes") != ""
		c.V1Sockets = text(m, "memory.kmem.tcp.limit_in_bytes") != ""
	}
	switch m := c.V1["cpuset"]; {
	case m != "":
		c.CPUs = text(m, "cpuset.cpus")
	case c.V2 != "":
		c.CPUs = text(c.V2, "cpuset.cpus.effective")
	}
	if c.V2 != "" {
		c.V2Enabled = strings.Fields(text(c.V2, "cgroup.subtree_control"))
	}
	dirs, _ := os.ReadDir(h.at(hugePages)) // not there: a kernel without huge pages
	for _, d := range dirs {
		if size, ok := pageSize(d.Name()); ok {
			c.HugePages = append(c.HugePages, size)
		}
	}
	slices.Sort(c.HugePages)
	c.readNUMA(text)
}

// hugePages has a folder for each size of huge pages: hugepages-2048kB.
const hugePages = "/sys/kernel/mm/hugepages"

func pageSize(folder string) (bytes int64, ok bool) {
	kib, ok := strings.CutSuffix(strings.TrimPrefix(folder, "hugepages-"), "kB")
	n, err := strconv.ParseInt(kib, 10, 64)
	return n << 10, ok && err == nil
}

// ReadHugeFree reads how many huge pages of each size are free, for a node that wants some.
func (c *Cgroups) ReadHugeFree() {
	c.HugeFree = map[int64]int64{}
	for _, size := range c.HugePages {
		dir := filepath.Join(hugePages, fmt.Sprintf("hugepages-%dkB", size>>10))
		number := func(name string) int64 {
			v, _ := strconv.ParseInt(file.Text(filepath.Join(dir, name)), 10, 64) // gone: none
			return v
		}
		// Pages that are promised to a mapping are still free; the kernel may make as many more as overcommit says.
		free := number("free_hugepages") - number("resv_hugepages") + number("nr_overcommit_hugepages") - number("surplus_hugepages")
		c.HugeFree[size] = max(free, 0) * size
	}
}

// readNUMA reads the host's NUMA nodes. Without memory that any process may use, one is no place for a node.
func (c *Cgroups) readNUMA(text func(path ...string) string) {
	const top = "/sys/devices/system/node"
	memory := numbers(text(top, "has_memory"))
	for _, n := range numbers(text(top, "online")) {
		if c.NUMA == nil {
			c.NUMA = map[int]NUMANode{}
		}
		c.NUMA[n] = NUMANode{CPUs: text(top, "node"+strconv.Itoa(n), "cpulist"), Memory: slices.Contains(memory, n)}
	}
}

// numbers reads a list as the kernel writes it: "0-3,8".
func numbers(list string) []int {
	set, err := vnode.ParseCPUSet(list)
	if err != nil {
		return nil
	}
	return set.List()
}
