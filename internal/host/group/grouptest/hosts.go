package grouptest

import (
	"maps"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"berth/internal/host"
)

// V1 returns a host with cgroup v1 alone.
func V1() host.Cgroups {
	m := "/cg/"
	return host.Cgroups{
		V1: map[string]string{
			"cpu": m + "cpu,cpuacct", "cpuacct": m + "cpu,cpuacct", "cpuset": m + "cpuset",
			"memory": m + "memory", "blkio": m + "blkio", "pids": m + "pids", "freezer": m + "freezer", "devices": m + "devices",
			"hugetlb": m + "hugetlb", "name=systemd": m + "systemd",
		},
		V1Swap: true, V1Sockets: true, CPUs: "0-3", HugePages: []int64{2 << 20, 1 << 30},
		HugeFree: map[int64]int64{2 << 20: 512 << 20},
	}
}

// V2 returns a host with cgroup v2 alone.
func V2() host.Cgroups {
	return host.Cgroups{
		V2: "/cg", V2Controllers: []string{"cpuset", "cpu", "io", "memory", "hugetlb", "pids", "rdma", "misc"},
		V2Enabled: []string{"cpu", "memory", "pids"}, CPUs: "0-3", HugePages: []int64{2 << 20, 1 << 30},
		HugeFree: map[int64]int64{2 << 20: 512 << 20},
	}
}

// Hybrid returns a v1 host with huge pages on the v2 tree.
func Hybrid() host.Cgroups {
	h := V1()
	delete(h.V1, "hugetlb")
	h.V2, h.V2Controllers = "/cg/unified", []string{"hugetlb"}
	return h
}

// Drawn returns a v2 host whose tree is one of plain files, with the control files that a kernel makes for the group berth/wn.
func Drawn(t *testing.T) (h host.Cgroups, dir string) {
	t.Helper()
	h = V2()
	h.V2 = t.TempDir()
	files := map[string]string{
		"cgroup.subtree_control":             "cpu memory pids\n",
		"cgroup.controllers":                 "cpuset cpu io memory hugetlb pids rdma misc\n",
		"berth/cgroup.subtree_control":       "\n",
		"berth/cgroup.controllers":           "cpuset cpu io memory pids\n", // without hugetlb
		"berth/wn/cpu.weight":                "100\n",
		"berth/wn/cpu.max":                   "max 100000\n",
		"berth/wn/cpu.stat":                  "usage_usec 1500\nuser_usec 1000\n",
		"berth/wn/cpuset.cpus":               "\n",
		"berth/wn/cpuset.cpus.effective":     "0-1\n",
		"berth/wn/memory.max":                "max\n",
		"berth/wn/memory.high":               "max\n",
		"berth/wn/memory.low":                "0\n",
		"berth/wn/memory.swap.max":           "max\n",
		"berth/wn/memory.current":            "4096\n",
		"berth/wn/memory.events":             "low 0\noom 2\noom_kill 1\n",
		"berth/wn/pids.max":                  "max\n",
		"berth/wn/pids.current":              "7\n",
		"berth/wn/hugetlb.2MB.max":           "max\n",
		"berth/wn/hugetlb.1GB.max":           "max\n",
		"berth/wn/io.max":                    "",
		"berth/wn/cgroup.procs":              "12\n7\n0\n",
		"berth/wn/node/cpu.max":              "max 100000\n",
		"berth/wn/node/cpu.stat":             "usage_usec 1400\n",
		"berth/wn/node/memory.max":           "max\n",
		"berth/wn/node/memory.low":           "0\n",
		"berth/wn/node/memory.swap.max":      "max\n",
		"berth/wn/node/pids.max":             "max\n",
		"berth/wn/inner/cgroup.procs":        "9\n",
		"berth/wn/inner/cgroup.threads":      "",
		"berth/wn/inner/empty/cgroup.procs":  "",
		"berth/wn/inner/empty/cgroup.events": "populated 0\n",
	}
	for _, name := range slices.Sorted(maps.Keys(files)) {
		file := filepath.Join(h.V2, name)
		Must(t, os.MkdirAll(filepath.Dir(file), 0o755))
		Must(t, os.WriteFile(file, []byte(files[name]), 0o644))
	}
	return h, filepath.Join(h.V2, "berth/wn")
}
