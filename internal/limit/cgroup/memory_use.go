package cgroup

import (
	"fmt"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"berth/internal/host"
	"berth/internal/host/group"
	"berth/internal/spec/vnode"
	"berth/internal/sys/refuse"
)

// held is the memory of a group that the kernel cannot reclaim without swap: only a process can free it.
type held struct{ processes, files, kernel, sockets vnode.Bytes }

func (h held) sum() vnode.Bytes { return h.processes + h.files + h.kernel }

// CheckMemory refuses a memory.max below what a running node holds: v1 would answer EBUSY, and v2 would kill processes of
// the node. A limit that is not lowered is not checked.
func CheckMemory(want, has vnode.Memory, h host.Cgroups, path string) error {
	if want.Max == 0 || has.Max != 0 && want.Max >= has.Max || swaps(want) {
		return nil
	}
	now := holds(h, path)
	if h.Has("memory") == "v1" && h.V1Sockets && now.sockets > vnode.Bytes(socketBytes(int64(want.Max))) {
		return &refuse.Error{
			Kind:   refuse.Busy,
			What:   fmt.Sprintf("memory.max %s: the node's sockets hold %s, and could have %s", want.Max, now.sockets, vnode.Bytes(socketBytes(int64(want.Max)))),
			Remedy: fmt.Sprintf("have its programs read or close them (berth exec NODE -- ss -tum shows which), or ask for at least %s", mib(now.sockets*4)),
		}
	}
	if want.Max >= now.sum() {
		return nil
	}
	return &refuse.Error{
		Kind: refuse.Busy,
		What: fmt.Sprintf("memory.max %s: the node holds %s that only it can free: its processes %s, files in memory %s, the kernel for it %s",
			want.Max, tidy(now.sum()), tidy(now.processes), tidy(now.files), tidy(now.kernel)),
		Remedy: fmt.Sprintf("end processes, delete files in /dev/shm and other tmpfs (a delta in memory too), or ask for at least %s", mib(now.sum())),
	}
}

// inUse returns the refusal for a v1 memory limit for which the kernel could not reclaim enough.
func inUse(asked, file string, err error) error {
	use := ""
	if n := group.Number(strings.TrimSuffix(file, "limit_in_bytes") + "usage_in_bytes"); n != nil {
		use = " of the " + vnode.Bytes(*n).String() + " in use"
	}
	return &refuse.Error{
		Kind:   refuse.Busy,
		What:   fmt.Sprintf("memory.max %s: the kernel could not take enough%s back (%s): %v", asked, use, filepath.Base(file), err),
		Remedy: "end processes of the node or delete its files in memory, or ask for more; written files need a moment to reach their disk",
		Err:    err,
	}
}

// tidy rounds a number of a MiB or more down to whole MiB.
func tidy(b vnode.Bytes) vnode.Bytes {
	if b < 1<<20 {
		return b
	}
	return b >> 20 << 20
}

// mib rounds up to whole MiB, and adds one for memory that is allocated until the limit is set.
func mib(b vnode.Bytes) vnode.Bytes { return (b + 2<<20 - 1) >> 20 << 20 }

// swaps reports whether the node may swap and the host has free swap.
func swaps(m vnode.Memory) bool {
	var info unix.Sysinfo_t
	return (m.Swap == nil || *m.Swap > 0) && unix.Sysinfo(&info) == nil && info.Freeswap > 0
}

// holds reads how much memory a group holds. A number that the kernel does not report counts as 0.
func holds(h host.Cgroups, path string) held {
	v1 := func(file string) string { return filepath.Join(h.V1["memory"], path, file) }
	get := func(n *int64) vnode.Bytes {
		if n == nil {
			return 0
		}
		return vnode.Bytes(*n)
	}
	if h.Has("memory") == "v1" {
		stat := v1("memory.stat")
		return held{
			processes: get(group.Field(stat, "total_rss")), files: get(group.Field(stat, "total_shmem")),
			sockets: get(group.Number(v1("memory.kmem.tcp.usage_in_bytes"))),
			// memory.kmem.usage_in_bytes is not used: it includes caches, which the kernel reclaims by itself.
		}
	}
	stat := filepath.Join(h.V2, path, "memory.stat")
	return held{
		processes: get(group.Field(stat, "anon")), files: get(group.Field(stat, "shmem")),
		kernel: get(group.Field(stat, "kernel")) - get(group.Field(stat, "slab_reclaimable")), // "kernel" since 5.18
	}
}
