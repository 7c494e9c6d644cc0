package host

import (
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// readOffers reads what the mounted controllers offer. A file that is not there means that the kernel lacks it.
func (c *Cgroups) readOffers(at func(path string) string) {
	text := func(path ...string) string {
		b, err := os.ReadFile(at(filepath.Join(path...)))
		if err != nil {
			return ""
		}
		return strings.TrimSpace(string(b))
	}
	if m := c.V1["memory"]; m != "" {
		c.V1Swap = text(m, "memory.memsw.limit_in_bytes") != ""
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
	dirs, _ := os.ReadDir(at("/sys/kernel/mm/hugepages")) // not there: a kernel without huge pages
	for _, d := range dirs {
		kib, ok := strings.CutSuffix(strings.TrimPrefix(d.Name(), "hugepages-"), "kB")
		if n, err := strconv.ParseInt(kib, 10, 64); ok && err == nil {
			c.HugePages = append(c.HugePages, n<<10)
		}
	}
	slices.Sort(c.HugePages)
}
