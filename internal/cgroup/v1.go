package cgroup

import (
	"os"
	"strconv"

	"berth/internal/vnode"
)

// hold is how one cgroup version enforces an asked limit.
type hold struct {
	mechanism string
	writes    []Write
	note      string // what the mechanism does not cover
}

// period is the period of CPU quotas in microseconds: the kernel's default.
const period = 100_000

// Shares of the v1 CPU controller: 1024 is normal, the kernel clamps to these bounds (kernel/sched/core.c).
const (
	normalShares = 1024
	minShares    = 2
	maxShares    = 1 << 18
)

// onV1 returns how cgroup v1 enforces a limit. file returns the path of a control file of the node's group.
func onV1(a ask, file func(name string) string) hold {
	number := strconv.FormatInt(a.value, 10)
	page := int64(os.Getpagesize())
	switch a.what {
	case "cpu.weight":
		return hold{"cpu.shares", []Write{{File: file("cpu.shares"), Value: strconv.FormatInt(shares(a.value), 10), None: "1024"}}, ""}
	case "cpu.max":
		return hold{"cfs quota", []Write{
			{File: file("cpu.cfs_period_us"), Value: strconv.Itoa(period), None: strconv.Itoa(period)},
			{File: file("cpu.cfs_quota_us"), Value: strconv.FormatInt(a.value*period/1000, 10), None: "-1"},
		}, ""}
	case "cpu.set":
		return hold{"cpuset", []Write{{File: file("cpuset.cpus"), Value: string(a.cpus), None: asParent}}, a.note}
	case "cpu.mems":
		return hold{"cpuset", []Write{{File: file("cpuset.mems"), Value: string(a.cpus), None: asParent}}, a.note}
	case "memory.max":
		return v1Memory(a, file)
	case "memory.swap":
		return hold{
			"memory.memsw",
			[]Write{{
				File:  file("memory.memsw.limit_in_bytes"),
				Value: strconv.FormatInt(a.value+a.max, 10), None: "-1", Unit: page,
			}},
			"cgroup v1 limits memory and swap together: what memory does not use of it, swap may",
		}
	case "pids":
		return hold{"pids.max", []Write{{File: file("pids.max"), Value: number, None: "max"}}, ""}
	case "hugepages":
		return hold{"hugetlb", []Write{{File: file("hugetlb." + hugeName(a.page) + ".limit_in_bytes"), Value: number, None: "-1", Unit: int64(a.page)}}, ""}
	}
	names := map[string]string{
		"io.read.rate": "read_bps", "io.read.iops": "read_iops", "io.write.rate": "write_bps", "io.write.iops": "write_iops",
	}
	note := ""
	if a.what == "io.write.rate" || a.what == "io.write.iops" {
		note = "cgroup v1 limits direct writes only, not those through the page cache"
	}
	return hold{"blkio.throttle", []Write{{
		File:   file("blkio.throttle." + names[a.what] + "_device"),
		Device: a.disk.Number(), Value: number, None: "0",
	}}, note}
}

// v1Memory limits a node's memory and, separately, that of its TCP and UDP sockets, which v1 does not count as memory. The
// limit of the sockets comes first: berth show prints the last write.
func v1Memory(a ask, file func(name string) string) hold {
	page := int64(os.Getpagesize())
	memory := Write{File: file("memory.limit_in_bytes"), Value: strconv.FormatInt(a.value, 10), None: "-1", Unit: page}
	if !a.sockets {
		return hold{"memory.limit_in_bytes", []Write{memory}, "this kernel neither counts nor limits what sockets hold"}
	}
	sockets := socketBytes(a.value)
	return hold{
		"memory.limit_in_bytes",
		[]Write{{File: file("memory.kmem.tcp.limit_in_bytes"), Value: strconv.FormatInt(sockets, 10), None: "-1", Unit: page}, memory},
		"cgroup v1 counts TCP and UDP buffers apart: at most " + vnode.Bytes(sockets).String() + " beside it",
	}
}

// socketBytes is how much the sockets of a node may hold on v1: a quarter of its memory, but at least what one fast
// connection needs.
func socketBytes(memory int64) int64 { return max(memory/4, 4<<20) }

// shares maps a weight (1..10000, 100 is normal) to v1 shares: weight × 1024 / 100, in the kernel's bounds.
func shares(weight int64) int64 {
	return min(max(weight*normalShares/100, minShares), maxShares)
}
