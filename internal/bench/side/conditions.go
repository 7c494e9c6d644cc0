package side

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"berth/internal/bench/result"
)

// Watch holds the readings from before a trial, to be compared with those after it.
type Watch struct {
	sys       string // where /sys is
	at        time.Time
	cpu       cpuTimes
	Own       time.Duration // CPU time of this process and of the children that it has waited for
	throttled int64
}

// cpuTimes are the first line of /proc/stat in ticks.
type cpuTimes struct{ programs, steal, all float64 }

// LookAround begins to watch.
func LookAround() Watch {
	w := Watch{sys: "/sys", at: time.Now(), throttled: Throttles("/sys"), Own: OwnTime()}
	w.cpu, _ = readCPUTimes()
	return w
}

// End tells what went on since LookAround; disk is the kernel's name of the disk that was measured, "" if none was.
func (w Watch) End(disk string) result.Conditions {
	now, ok := readCPUTimes()
	c := result.Conditions{
		CPUMHz: Clock(w.sys), Throttled: max(Throttles(w.sys)-w.throttled, 0),
		CPUTempC: Hottest(filepath.Join(w.sys, "class/thermal/thermal_zone*/temp")),
	}
	if disk != "" {
		c.DiskTempC = Hottest(filepath.Join(w.sys, "block", disk, "device/hwmon*/temp1_input"),
			filepath.Join(w.sys, "block", disk, "device/hwmon/hwmon*/temp1_input"))
	}
	if all := now.all - w.cpu.all; ok && all >= fewestTicks {
		steal := 100 * max(now.steal-w.cpu.steal, 0) / all
		// Interrupts are left out: much of the CPU time that a disk or a card causes is charged to no process.
		others := (now.programs-w.cpu.programs)*Tick - (OwnTime() - w.Own).Seconds()
		other := 100 * max(others, 0) / (all * Tick)
		c.StealPct, c.OtherPct = &steal, &other
	}
	return c
}

// readCPUTimes reads user, nice and system as programs', and steal, of all CPUs (proc_stat(5)).
func readCPUTimes() (cpuTimes, bool) {
	b, err := os.ReadFile("/proc/stat")
	if err != nil {
		return cpuTimes{}, false
	}
	line, _, _ := strings.Cut(string(b), "\n")
	f := strings.Fields(line)
	if len(f) < 9 || f[0] != "cpu" {
		return cpuTimes{}, false
	}
	var c cpuTimes
	for i, s := range f[1:9] { // guest times, which follow, are in user and nice already
		v, err := strconv.ParseFloat(s, 64)
		if err != nil {
			return cpuTimes{}, false
		}
		c.all += v
		switch i {
		case 0, 1, 2:
			c.programs += v
		case 7:
			c.steal = v
		}
	}
	return c, true
}

// OwnTime is the CPU time of this process and of all descendants that have ended and were waited for, fio on the host and
// in a node among them: the runtime waits for the command, berth exec for the runtime.
func OwnTime() time.Duration {
	var sum time.Duration
	for _, who := range []int{unix.RUSAGE_SELF, unix.RUSAGE_CHILDREN} {
		var u unix.Rusage
		if unix.Getrusage(who, &u) == nil {
			sum += time.Duration(u.Utime.Nano() + u.Stime.Nano())
		}
	}
	return sum
}

// Throttles counts how often a CPU core or its package was slowed down because of heat, where the kernel says (x86).
func Throttles(sys string) int64 {
	sum := int64(0)
	for _, pattern := range []string{"core_throttle_count", "package_throttle_count"} {
		for _, v := range numbers(filepath.Join(sys, "devices/system/cpu/cpu*/thermal_throttle", pattern)) {
			sum += int64(v)
		}
	}
	return sum
}

// Clock is the mean frequency of all CPUs in MHz, 0 where the kernel does not say (most virtual machines).
func Clock(sys string) float64 {
	v := numbers(filepath.Join(sys, "devices/system/cpu/cpu*/cpufreq/scaling_cur_freq"))
	sum := 0.0
	for _, khz := range v {
		sum += khz / 1e3
	}
	if sum == 0 {
		return 0
	}
	return sum / float64(len(v))
}

// Hottest returns the highest of temperatures in thousandths of a degree, in degrees; 0: there is none.
func Hottest(patterns ...string) float64 {
	top := 0.0
	for _, p := range patterns {
		for _, v := range numbers(p) {
			top = max(top, v/1e3)
		}
	}
	return top
}

// numbers reads the files that fit a pattern; those that hold no number are left out.
func numbers(pattern string) []float64 {
	files, _ := filepath.Glob(pattern)
	var all []float64
	for _, f := range files {
		if v, err := strconv.ParseFloat(Word(f), 64); err == nil {
			all = append(all, v)
		}
	}
	return all
}

// DropCaches writes back what is dirty and makes the kernel forget what it cached (Documentation/admin-guide/sysctl/vm.rst).
func DropCaches() error {
	unix.Sync()
	return os.WriteFile("/proc/sys/vm/drop_caches", []byte("3"), 0)
}

// fewestTicks of all CPUs are what CPU times can be told of: a tick is 10 ms, and of fewer than these one is more than a
// percent. Of a shorter trial, such as the start of a node, they say nothing.
const fewestTicks = 100

// Tick is the unit of /proc/stat in seconds: USER_HZ is 100 on all architectures that Linux has today.
const Tick = 0.01
