package host

import (
	"slices"
	"strings"
)

// Cgroups says where the cgroup hierarchies are mounted and which controllers each has.
type Cgroups struct {
	V1            map[string]string `json:"v1,omitempty"` // controller, or "name=systemd", to its mount point
	V2            string            `json:"v2,omitempty"` // mount point of the v2 tree; "" if there is none
	V2Controllers []string          `json:"v2_controllers,omitempty"`

	// Facts that the planner needs about limits, before anything is changed:
	V2Enabled []string `json:"v2_enabled,omitempty"` // controllers that the v2 root hands to its children
	V1Swap    bool     `json:"v1_swap,omitempty"`    // v1 counts memory and swap together (memory.memsw.*)
	V1Sockets bool     `json:"v1_sockets,omitempty"` // v1 limits what sockets hold (memory.kmem.tcp.*)
	CPUs      string   `json:"cpus,omitempty"`       // CPUs that the top cpuset offers; "" without a cpuset controller
	HugePages []int64  `json:"huge_pages,omitempty"` // huge page sizes in bytes, ascending

	HugeFree map[int64]int64  `json:"huge_free,omitempty"` // by size: bytes in pages that are free and not promised to anybody; see ReadHugeFree
	NUMA     map[int]NUMANode `json:"numa,omitempty"`      // by number
}

// NUMANode is one node of the host's memory, with the CPUs that are near to it.
type NUMANode struct {
	CPUs   string `json:"cpus,omitempty"`   // "0-3,8"; "" for memory without CPUs
	Memory bool   `json:"memory,omitempty"` // it has memory that any process may use
}

// Mode names the kind of host: "v1" (no v2 tree, or one without controllers), "v2" (no v1 controller), else "hybrid".
func (c Cgroups) Mode() string {
	v1 := false
	for k := range c.V1 {
		v1 = v1 || !strings.HasPrefix(k, "name=")
	}
	switch {
	case !v1 && c.V2 != "":
		return "v2"
	case len(c.V2Controllers) == 0:
		return "v1"
	}
	return "hybrid"
}

// Has reports on which version ("v1" or "v2") the controller is usable, or "".
func (c Cgroups) Has(controller string) string {
	if c.V1[controller] != "" {
		return "v1"
	}
	if slices.Contains(c.V2Controllers, controller) {
		return "v2"
	}
	return ""
}
