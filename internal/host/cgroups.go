// Package host collects facts about the host from /proc and /sys, rooted so that tests can hand it a tree, and checks
// them (doctor). It changes nothing.
package host

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/moby/sys/mountinfo"
)

// Cgroups says where the cgroup hierarchies are mounted and which controllers each has.
type Cgroups struct {
	V1            map[string]string `json:"v1,omitempty"` // controller, or "name=systemd", to its mount point
	V2            string            `json:"v2,omitempty"` // mount point of the v2 tree; "" if there is none
	V2Controllers []string          `json:"v2_controllers,omitempty"`

	// What a limit needs to know before anything is changed.
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

// ReadCgroups reads the cgroup mounts of this process from proc ("/proc" on a real host), and what they offer.
func ReadCgroups(proc string) (Cgroups, error) {
	at := func(path string) string { return path }
	c, err := readMounted(proc, at)
	if err == nil {
		c.readOffers(at)
	}
	return c, err
}

// ReadMounted is ReadCgroups without what the hierarchies offer: enough to find a group that is there.
func ReadMounted() (Cgroups, error) {
	return readMounted("/proc", func(path string) string { return path })
}

// readMounted is ReadMounted for a tree: at maps a mount point to its place in it.
func readMounted(proc string, at func(path string) string) (Cgroups, error) {
	c := Cgroups{V1: map[string]string{}}
	f, err := os.Open(filepath.Join(proc, "self/mountinfo"))
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
		b, err := os.ReadFile(filepath.Join(at(c.V2), "cgroup.controllers"))
		if err != nil {
			return c, fmt.Errorf("read controllers of %s: %w", c.V2, err)
		}
		c.V2Controllers = strings.Fields(string(b))
	}
	return c, nil
}
