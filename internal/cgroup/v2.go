package cgroup

import (
	"fmt"
	"os"
	"strconv"

	"berth/internal/vnode"
)

// onV2 returns how cgroup v2 enforces a limit (Documentation/admin-guide/cgroup-v2.rst). file is as in onV1.
func onV2(a ask, file func(name string) string) hold {
	number := strconv.FormatInt(a.value, 10)
	page := int64(os.Getpagesize())
	switch a.what {
	case "cpu.weight":
		return hold{"cpu.weight", []Write{{File: file("cpu.weight"), Value: number, None: "100"}}, ""}
	case "cpu.max":
		return hold{"cpu.max", []Write{{
			File:  file("cpu.max"),
			Value: fmt.Sprintf("%d %d", a.value*period/1000, period), None: fmt.Sprintf("max %d", period),
		}}, ""}
	case "cpu.mems":
		return hold{"cpuset", []Write{{File: file("cpuset.mems"), Value: string(a.cpus), From: file("cpuset.mems.effective")}}, a.note}
	case "cpu.set":
		// cpuset.cpus accepts CPUs that do not exist; cpuset.cpus.effective has those in force
		return hold{"cpuset", []Write{{File: file("cpuset.cpus"), Value: string(a.cpus), From: file("cpuset.cpus.effective")}}, a.note}
	case "memory.max", "memory.high":
		return hold{a.what, []Write{{File: file(a.what), Value: number, None: "max", Unit: page}}, ""}
	case "memory.low", "memory.min":
		return hold{a.what, []Write{{File: file(a.what), Value: number, None: "0", Unit: page, Sum: true}}, a.note}
	case "memory.swap":
		return hold{"memory.swap.max", []Write{{File: file("memory.swap.max"), Value: number, None: "max", Unit: page}}, ""}
	case "pids":
		return hold{"pids.max", []Write{{File: file("pids.max"), Value: number, None: "max"}}, ""}
	case "hugepages":
		return hold{"hugetlb", []Write{{File: file("hugetlb." + hugeName(a.page) + ".max"), Value: number, None: "max", Unit: int64(a.page)}}, ""}
	}
	params := map[string]string{
		"io.read.rate": "rbps", "io.read.iops": "riops", "io.write.rate": "wbps", "io.write.iops": "wiops",
	}
	return hold{"io.max", []Write{{File: file("io.max"), Device: a.disk.Number(), Param: params[a.what], Value: number, None: "max"}}, ""}
}

// hugeName is a huge page size as the hugetlb controller names it (mm/hugetlb_cgroup.c: mem_fmt).
func hugeName(size vnode.Bytes) string {
	switch {
	case size >= 1<<30:
		return strconv.FormatInt(int64(size>>30), 10) + "GB"
	case size >= 1<<20:
		return strconv.FormatInt(int64(size>>20), 10) + "MB"
	}
	return strconv.FormatInt(int64(size>>10), 10) + "KB"
}
