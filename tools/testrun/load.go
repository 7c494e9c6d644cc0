package main

import (
	"fmt"
	"os"
	"strings"
)

// load says how busy the machine is: what the hypervisor took since it booted, in clock ticks, and for how much of the last ten
// seconds some process waited for a CPU. What this kernel does not tell is left out.
func load() string {
	text := "load unknown"
	if avg, err := os.ReadFile("/proc/loadavg"); err == nil {
		text = "load " + strings.Join(strings.Fields(string(avg))[:1], "")
	}
	if stat, err := os.ReadFile("/proc/stat"); err == nil {
		if f := strings.Fields(strings.SplitN(string(stat), "\n", 2)[0]); len(f) > 8 {
			text += ", steal " + f[8] + " ticks"
		}
	}
	if psi, err := os.ReadFile("/proc/pressure/cpu"); err == nil {
		if f := strings.Fields(string(psi)); len(f) > 1 {
			text += fmt.Sprintf(", cpu pressure %s", f[1])
		}
	}
	return text
}
