package host

import (
	"fmt"
	"math"
	"os"
	"strconv"
	"strings"

	"berth/internal/sys/fault"
)

// Facts are the facts about a host that the planner needs. They are read before each start of a node, so they are few.
type Facts struct {
	Kernel  string  `json:"kernel"`  // release, as uname -r prints it
	Version Version `json:"version"` // parsed from it
	BootID  string  `json:"boot_id"` // changes with every boot
	Cgroups Cgroups `json:"cgroups"`
	SysRes  bool    `json:"sys_resource"` // CAP_SYS_RESOURCE: hard limits can be raised
}

// ReadFacts reads the facts of the host this process runs on.
func ReadFacts() (Facts, error) { return New().Facts() }

// Facts reads them. An error means that /proc or /sys is not as on a Linux host.
func (h Host) Facts() (Facts, error) {
	f := Facts{
		Kernel: h.text("/proc/sys/kernel/osrelease"),
		SysRes: h.hasCap(capSysResource),
	}
	var err error
	if f.Version, err = ParseVersion(f.Kernel); err != nil {
		return f, err
	}
	if f.BootID, err = h.BootID(); err != nil {
		return f, err
	}
	f.Cgroups, err = h.Cgroups()
	return f, err
}

// BootID reads the id of this boot of the host. The effect of a step in the kernel lasts as long as the boot.
func (h Host) BootID() (string, error) {
	path := h.at("/proc/sys/kernel/random/boot_id")
	text, err := os.ReadFile(path)
	if err != nil {
		return "", fmt.Errorf("read the boot id: %w", err)
	}
	id := strings.TrimSpace(string(text))
	if id == "" {
		return "", fmt.Errorf("read the boot id: %s is empty", path)
	}
	return fault.Boot(id), nil
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

// limitNameWidth is the width of the first column of /proc/PID/limits (fs/proc/base.c: "%-25s %-20s %-20s").
const limitNameWidth = 25

// hardNofile reads how many files this process and its children can be allowed to have open; 0 is not known, math.MaxUint64 no limit.
func (h Host) hardNofile() uint64 {
	for line := range strings.Lines(h.text("/proc/self/limits")) {
		if !strings.HasPrefix(line, "Max open files") || len(line) < limitNameWidth {
			continue
		}
		f := strings.Fields(line[limitNameWidth:])
		if len(f) > 1 && f[1] == "unlimited" {
			return math.MaxUint64
		}
		if len(f) > 1 {
			n, _ := strconv.ParseUint(f[1], 10, 64)
			return n
		}
	}
	return 0
}

// Numbers of capabilities (linux/capability.h).
const capSysResource = 24

// hasCap reports whether this process has the capability in effect.
func (h Host) hasCap(number int) bool {
	for line := range strings.Lines(h.text("/proc/self/status")) {
		if text, ok := strings.CutPrefix(line, "CapEff:"); ok {
			set, err := strconv.ParseUint(strings.TrimSpace(text), 16, 64)
			return err == nil && set&(1<<number) != 0
		}
	}
	return false
}

// HeatCounters returns the paths of the counters of heat of each CPU: they reveal the load of others. Virtual machines
// usually have none.
func (h Host) HeatCounters() []string {
	return h.glob("/sys/devices/system/cpu/cpu[0-9]*/thermal_throttle")
}
