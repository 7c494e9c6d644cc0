package lab

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// Others begins to look at what else runs on this host. The function that it returns says how much of all CPUs others took since,
// in percent of user time: programs other than the machines of this process, and the hypervisor.
func Others() (share func() (percent float64, err error)) {
	user, own, all, before := spent()
	return func() (float64, error) {
		u, o, a, err := spent()
		if before != nil {
			err = before
		}
		return 100 * max(0, (u-user)-(o-own)) / max(1, a-all), err
	}
}

// spent returns user time on this host with what its hypervisor took, user time of this process's machines, and all time, in ticks.
func spent() (user, own, all float64, err error) {
	host, err := os.ReadFile("/proc/stat")
	if err != nil {
		return 0, 0, 0, err
	}
	f := strings.Fields(string(host)) // "cpu", user, nice, system, idle, iowait, irq, softirq, steal
	for i := 1; i <= 8; i++ {
		n, err := strconv.ParseFloat(f[i], 64)
		if err != nil {
			return 0, 0, 0, fmt.Errorf("read /proc/stat: %w", err)
		}
		if all += n; i == 1 || i == 2 || i == 8 {
			user += n
		}
	}
	processes, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil {
		return 0, 0, 0, err
	}
	for _, p := range processes {
		text, err := os.ReadFile(p)
		if err != nil {
			continue // it has ended
		}
		name, rest, _ := strings.Cut(string(text), ") ")
		f := strings.Fields(rest) // its state, its parent, …; user time is the 12th
		if strings.Contains(name, "(qemu-system") && len(f) > 11 && f[1] == strconv.Itoa(os.Getpid()) {
			n, _ := strconv.ParseFloat(f[11], 64)
			own += n
		}
	}
	return user, own, all, nil
}
