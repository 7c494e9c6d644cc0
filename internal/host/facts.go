package host

import (
	"fmt"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
)

// Facts are what the planner needs to know of a host. They cost well under a millisecond to read.
type Facts struct {
	Kernel     string            `json:"kernel"`  // release, as uname -r prints it
	Version    Version           `json:"version"` // parsed from it
	Arch       string            `json:"arch"`    // as Go names it: amd64, arm64 …
	BootID     string            `json:"boot_id"` // changes with every boot
	Init       string            `json:"init"`    // name of process 1
	CPUs       int               `json:"cpus"`    // how many are online
	OnlineCPUs string            `json:"online_cpus"`
	NUMA       map[int]string    `json:"numa,omitempty"` // NUMA node to its CPUs; empty where the kernel has no NUMA
	Memory     uint64            `json:"memory"`         // bytes
	Swap       uint64            `json:"swap"`           // bytes
	Cgroups    Cgroups           `json:"cgroups"`
	HardLimits map[string]uint64 `json:"hard_limits"`  // this process's, by the names of a spec's rlimits; math.MaxUint64: none
	SysRes     bool              `json:"sys_resource"` // CAP_SYS_RESOURCE: hard limits can be raised
}

// Systemd reports whether process 1 is systemd.
func (f Facts) Systemd() bool { return f.Init == "systemd" }

// ReadFacts reads the facts of the host this process runs on.
func ReadFacts() (Facts, error) { return New().Facts() }

// Facts reads them. An error means that /proc or /sys is not what a Linux host has.
func (h Host) Facts() (Facts, error) {
	f := Facts{
		Arch:       runtime.GOARCH,
		Kernel:     h.text("/proc/sys/kernel/osrelease"),
		BootID:     h.text("/proc/sys/kernel/random/boot_id"),
		Init:       h.text("/proc/1/comm"),
		OnlineCPUs: h.text("/sys/devices/system/cpu/online"),
		NUMA:       h.numa(),
		SysRes:     h.hasCap(capSysResource),
	}
	var err error
	if f.Version, err = ParseVersion(f.Kernel); err != nil {
		return f, err
	}
	if f.BootID == "" {
		return f, fmt.Errorf("read the boot id: %s is empty or missing", h.at("/proc/sys/kernel/random/boot_id"))
	}
	if f.CPUs, err = countCPUs(f.OnlineCPUs); err != nil {
		return f, fmt.Errorf("read the online CPUs: %w", err)
	}
	mem := h.meminfo()
	f.Memory, f.Swap = mem["MemTotal"], mem["SwapTotal"]
	if f.HardLimits, err = h.hardLimits(); err != nil {
		return f, err
	}
	if f.Cgroups, err = h.Cgroups(); err != nil {
		return f, err
	}
	return f, nil
}

// numa reads which CPUs each NUMA node has.
func (h Host) numa() map[int]string {
	dirs, _ := filepath.Glob(h.at("/sys/devices/system/node/node[0-9]*")) // the pattern is constant
	nodes := map[int]string{}
	for _, dir := range dirs {
		id, err := strconv.Atoi(strings.TrimPrefix(filepath.Base(dir), "node"))
		cpus, rerr := os.ReadFile(filepath.Join(dir, "cpulist"))
		if err == nil && rerr == nil {
			nodes[id] = strings.TrimSpace(string(cpus))
		}
	}
	return nodes
}

// meminfo reads /proc/meminfo; values are bytes.
func (h Host) meminfo() map[string]uint64 {
	m := map[string]uint64{}
	for line := range strings.Lines(h.text("/proc/meminfo")) {
		name, rest, _ := strings.Cut(line, ":")
		f := strings.Fields(rest)
		if len(f) == 0 {
			continue
		}
		n, err := strconv.ParseUint(f[0], 10, 64)
		if err != nil {
			continue
		}
		if len(f) == 2 && f[1] == "kB" {
			n *= 1024 // the kernel writes kB and means KiB
		}
		m[name] = n
	}
	return m
}

// countCPUs counts the CPUs of a list like "0-3,8".
func countCPUs(list string) (int, error) {
	n := 0
	for part := range strings.SplitSeq(list, ",") {
		first, last, ranged := strings.Cut(part, "-")
		a, err := strconv.Atoi(first)
		if err != nil {
			return 0, fmt.Errorf("CPU list %q: %w", list, err)
		}
		b := a
		if ranged {
			if b, err = strconv.Atoi(last); err != nil {
				return 0, fmt.Errorf("CPU list %q: %w", list, err)
			}
		}
		if b < a {
			return 0, fmt.Errorf("CPU list %q: %d is after %d", list, a, b)
		}
		n += b - a + 1
	}
	return n, nil
}

// The lines of /proc/PID/limits, by the names that setrlimit(2) and a spec use.
var limitNames = map[string]string{
	"Max cpu time":          "cpu",
	"Max file size":         "fsize",
	"Max data size":         "data",
	"Max stack size":        "stack",
	"Max core file size":    "core",
	"Max resident set":      "rss",
	"Max processes":         "nproc",
	"Max open files":        "nofile",
	"Max locked memory":     "memlock",
	"Max address space":     "as",
	"Max file locks":        "locks",
	"Max pending signals":   "sigpending",
	"Max msgqueue size":     "msgqueue",
	"Max nice priority":     "nice",
	"Max realtime priority": "rtprio",
	"Max realtime timeout":  "rttime",
}

// limitNameWidth is the width of the first column of /proc/PID/limits (fs/proc/base.c: "%-25s %-20s %-20s").
const limitNameWidth = 25

// hardLimits reads the hard resource limits of this process: what it and its children can reach.
func (h Host) hardLimits() (map[string]uint64, error) {
	text, err := os.ReadFile(h.at("/proc/self/limits"))
	if err != nil {
		return nil, fmt.Errorf("read the hard limits: %w", err)
	}
	limits := map[string]uint64{}
	for line := range strings.Lines(string(text)) {
		if len(line) < limitNameWidth {
			continue
		}
		name, known := limitNames[strings.TrimSpace(line[:limitNameWidth])]
		f := strings.Fields(line[limitNameWidth:])
		if !known || len(f) < 2 {
			continue
		}
		if f[1] == "unlimited" {
			limits[name] = math.MaxUint64
			continue
		}
		if limits[name], err = strconv.ParseUint(f[1], 10, 64); err != nil {
			return nil, fmt.Errorf("read the hard limit %s: %w", name, err)
		}
	}
	return limits, nil
}

// Numbers of capabilities (linux/capability.h).
const capSysResource = 24

// hasCap reports whether this process has the capability in effect.
func (h Host) hasCap(number int) bool {
	set, err := strconv.ParseUint(h.status("CapEff"), 16, 64)
	return err == nil && set&(1<<number) != 0
}

// status returns one value of /proc/self/status, "" if this kernel does not have it.
func (h Host) status(key string) string {
	for line := range strings.Lines(h.text("/proc/self/status")) {
		if v, ok := strings.CutPrefix(line, key+":"); ok {
			return strings.TrimSpace(v)
		}
	}
	return ""
}
