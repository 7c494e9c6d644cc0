// Package counters reads what the kernel has counted for a group: what its processes use, and how its limits held them back.
package counters

import (
	"fmt"
	"os"
	"path/filepath"
	"time"

	"berth/internal/host"
	"berth/internal/host/group"
)

// Usage is what a group uses now. A nil field is not counted on this host.
type Usage struct {
	Memory   *int64         `json:"memory,omitempty"`           // bytes
	Peak     *int64         `json:"memory_peak,omitempty"`      // most bytes since the group was made; on v2 since kernel 5.19
	AtLimit  *int64         `json:"memory_at_limit,omitempty"`  // times that it reached memory.max since the group was made
	Reclaims *int64         `json:"memory_reclaimed,omitempty"` // bytes that the kernel reclaimed since then; not counted on v1
	OOMKills *int64         `json:"oom_kills,omitempty"`        // processes killed for lack of memory since then
	PIDs     *int64         `json:"pids,omitempty"`             // processes and threads
	CPU      *time.Duration `json:"cpu_ns,omitempty"`           // CPU time used since the group was made

	Read    *int64 `json:"read,omitempty"`    // bytes read from disks since then
	Written *int64 `json:"written,omitempty"` // bytes written to them
	Reads   *int64 `json:"reads,omitempty"`   // requests to read
	Writes  *int64 `json:"writes,omitempty"`  // requests to write

	AtHigh    *int64         `json:"memory_at_high,omitempty"` // times that it was slowed down for exceeding memory.high; v2 only
	Throttled *time.Duration `json:"throttled_ns,omitempty"`   // time that cpu.max kept it from running since then, summed over CPUs
}

// Stats reads what a group uses. All fields are nil if the group does not exist.
func Stats(h host.Cgroups, path string) Usage {
	v1 := func(controller, file string) string { return filepath.Join(h.V1[controller], path, file) }
	v2 := func(file string) string { return filepath.Join(h.V2, path, file) }
	var u Usage
	switch h.Has("memory") {
	case "v1":
		u.Memory = group.Number(v1("memory", "memory.usage_in_bytes"))
		u.Peak = group.Number(v1("memory", "memory.max_usage_in_bytes"))
		u.AtLimit = group.Number(v1("memory", "memory.failcnt"))
		u.OOMKills = group.Field(v1("memory", "memory.oom_control"), "oom_kill") // since kernel 4.13
	case "v2":
		u.Memory = group.Number(v2("memory.current"))
		u.Peak = group.Number(v2("memory.peak"))
		u.AtLimit = group.Field(v2("memory.events"), "max")
		u.OOMKills = group.Field(v2("memory.events"), "oom_kill")
		u.AtHigh = group.Field(v2("memory.events"), "high")
		if pages := group.Field(v2("memory.stat"), "pgsteal"); pages != nil { // since kernel 6.0
			u.Reclaims = new(*pages * int64(os.Getpagesize()))
		}
	}
	switch h.Has("pids") {
	case "v1":
		u.PIDs = group.Number(v1("pids", "pids.current"))
	case "v2":
		u.PIDs = group.Number(v2("pids.current"))
	}
	if h.Has("cpuacct") == "v1" {
		u.CPU = duration(group.Number(v1("cpuacct", "cpuacct.usage")), time.Nanosecond)
	} else if h.V2 != "" { // v2 counts it without the cpu controller too
		u.CPU = duration(group.Field(v2("cpu.stat"), "usage_usec"), time.Microsecond)
	}
	if h.Has("cpu") == "v1" {
		u.Throttled = duration(group.Field(v1("cpu", "cpu.stat"), "throttled_time"), time.Nanosecond)
	} else if h.V2 != "" {
		// The container's root group has the node's cpu.max too, and each of the two counts how long it was kept from running
		// itself: with equal limits, the group whose period begins later counts the whole time.
		for _, at := range []string{path, group.Container(h, path)} {
			t := duration(group.Field(filepath.Join(h.V2, at, "cpu.stat"), "throttled_usec"), time.Microsecond)
			if u.Throttled == nil || t != nil && *t > *u.Throttled {
				u.Throttled = t
			}
		}
	}
	u.disks(h, path)
	return u
}

// disks sums up what the group read and wrote. The kernel counts the I/O of a logical volume, or of a loop device, once more on the disk below, as that of the
// same group.
func (u *Usage) disks(h host.Cgroups, path string) {
	var c Counters
	NewMeter(h, true).disks(path, &c)
	if c.Disks == nil {
		return
	}
	u.Read, u.Written, u.Reads, u.Writes = new(int64), new(int64), new(int64), new(int64)
	for _, d := range c.Disks {
		if d.stacked("/sys") {
			continue
		}
		*u.Read += d.ReadBytes
		*u.Written += d.WriteBytes
		*u.Reads += d.ReadOps
		*u.Writes += d.WriteOps
	}
}

// stacked reports whether the I/O of a block device is counted on another too: a logical volume, a RAID, a loop device past the page cache.
func (d *DiskCount) stacked(sys string) bool {
	at := fmt.Sprintf("%s/dev/block/%d:%d", sys, d.Major, d.Minor)
	below, _ := os.ReadDir(at + "/slaves")     // none if the disk has just been unplugged
	direct, _ := os.ReadFile(at + "/loop/dio") // cgroup v1 charges I/O through the page cache to no group below
	return len(below) > 0 || string(direct) == "1\n"
}

func duration(n *int64, unit time.Duration) *time.Duration {
	if n == nil {
		return nil
	}
	return new(time.Duration(*n) * unit)
}
