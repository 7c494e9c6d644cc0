package main

import (
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
)

// load says how busy the machine is: what the hypervisor took since it booted, in clock ticks, and for how much of the last ten
// seconds some process waited for a CPU. What this kernel does not tell is left out.
func load() string {
	text := "load unknown"
	if avg, err := os.ReadFile("/proc/loadavg"); err == nil {
		text = "load " + strings.Join(strings.Fields(string(avg))[:1], "")
	}
	if _, stolen := ticks(); stolen >= 0 {
		text += fmt.Sprintf(", steal %d ticks", stolen)
	}
	if psi, err := os.ReadFile("/proc/pressure/cpu"); err == nil {
		if f := strings.Fields(string(psi)); len(f) > 1 {
			text += fmt.Sprintf(", cpu pressure %s", f[1])
		}
	}
	return text
}

// ticks returns the clock ticks of all CPUs since the machine booted, and how many of them the hypervisor took: -1 if the kernel does not tell
// (proc_stat(5), the line of all CPUs).
func ticks() (all, stolen int64) {
	stat, err := os.ReadFile("/proc/stat")
	if err != nil {
		return 0, -1
	}
	f := strings.Fields(strings.SplitN(string(stat), "\n", 2)[0])
	if len(f) < 9 {
		return 0, -1
	}
	for i, word := range f[1:9] {
		n, err := strconv.ParseInt(word, 10, 64)
		if err != nil {
			return 0, -1
		}
		if all += n; i == 7 {
			stolen = n
		}
	}
	return all, stolen
}

// machine describes where the tests ran, since the ticks that were counted before.
func machine(all, stolen int64) string {
	text := fmt.Sprintf("%d CPUs", runtime.NumCPU())
	if release, err := os.ReadFile("/proc/sys/kernel/osrelease"); err == nil {
		text += ", Linux " + strings.TrimSpace(string(release))
	}
	if now, took := ticks(); took >= 0 && now > all {
		text += fmt.Sprintf(", of whose time the hypervisor took %.1f %%", 100*float64(took-stolen)/float64(now-all))
	}
	return text
}
