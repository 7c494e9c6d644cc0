package host

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"
)

// measuring checks the tools that measurements need, and settings that would spoil them.
func (d *doctor) measuring() []Check {
	return []Check{
		d.tool("fio", "berth bench disk runs it in both arms"),
		d.tool("iperf3", "berth bench net runs it in both arms"),
		d.pressure(), d.clock(), d.governor(), d.turbo(),
	}
}

func (d *doctor) tool(name, why string) Check {
	if path := d.Tools[name]; path != "" {
		return Check{Name: name, State: OK, Found: path, Why: why}
	}
	return Check{Name: name, State: Lacks, Found: "not installed", Why: why, Remedy: d.pkg.get(name)}
}

func (d *doctor) pressure() Check {
	c := Check{Name: "pressure (PSI)", State: OK, Found: "on", Why: "says how long nodes wait for CPU, memory and disks"}
	if !d.exists("/proc/pressure/io") {
		c.State, c.Found = d.built.absent("PSI"), "none"
		if c.State == Off {
			c.Found, c.Remedy = "off", "# add psi=1 to the kernel's command line, reboot"
		}
	}
	return c
}

// slowClocks are clocks that are read through a device or a lock, not in user space. Each reading costs a microsecond.
var slowClocks = []string{"acpi_pm", "hpet", "jiffies", "refined-jiffies", "pit"}

func (d *doctor) clock() Check {
	const dir = "/sys/devices/system/clocksource/clocksource0/"
	now, others := d.text(dir+"current_clocksource"), strings.Fields(d.text(dir+"available_clocksource"))
	c := Check{Name: "clock", State: OK, Found: now, Why: "a slow clock adds to each latency that is measured"}
	if now == "" {
		c.State, c.Found = Lacks, "unknown"
		return c
	}
	if !slices.Contains(slowClocks, now) {
		return c
	}
	c.State, c.Wanted = Off, "tsc or the hypervisor's clock"
	for _, o := range others {
		if !slices.Contains(slowClocks, o) {
			c.Remedy = "echo " + o + " > " + dir + "current_clocksource"
			return c
		}
	}
	c.State = Lacks
	return c
}

func (d *doctor) governor() Check {
	c := Check{Name: "CPU governor", Why: "a frequency that follows the load spoils measurements"}
	paths, _ := filepath.Glob(d.at("/sys/devices/system/cpu/cpu[0-9]*/cpufreq/scaling_governor")) // the pattern is constant
	if len(paths) == 0 {
		c.State, c.Found = Lacks, "no control (a virtual machine, or the firmware decides)"
		return c
	}
	count := map[string]int{}
	for _, p := range paths {
		count[d.text(p)]++
	}
	if count["performance"] == len(paths) {
		c.State, c.Found = OK, "performance"
		return c
	}
	c.State, c.Wanted = Off, "performance on all CPUs"
	c.Found = fmt.Sprintf("performance on %d of %d CPUs", count["performance"], len(paths))
	c.Remedy = "echo performance | tee /sys/devices/system/cpu/cpu*/cpufreq/scaling_governor"
	return c
}

func (d *doctor) turbo() Check {
	c := Check{Name: "CPU turbo", State: OK, Found: "off", Why: "turbo depends on heat and on the other CPUs: it spoils measurements"}
	const intel, boost = "/sys/devices/system/cpu/intel_pstate/no_turbo", "/sys/devices/system/cpu/cpufreq/boost"
	switch {
	case d.text(intel) == "0":
		c.State, c.Found, c.Wanted, c.Remedy = Off, "turbo is on", "turbo off while measuring", "echo 1 > "+intel
	case d.text(boost) == "1":
		c.State, c.Found, c.Wanted, c.Remedy = Off, "boost is on", "boost off while measuring", "echo 0 > "+boost
	case d.text(intel) == "" && d.text(boost) == "":
		c.State, c.Found = Lacks, "no control (a virtual machine, or the firmware decides)"
	}
	return c
}
