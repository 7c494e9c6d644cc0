package host

import (
	"strconv"
	"strings"
	"time"
)

// Use is the host's current use of CPU and memory.
type Use struct {
	CPUs        int           // online
	Busy        time.Duration // since boot, summed over CPUs
	Memory      uint64        // bytes in use: MemTotal less MemAvailable
	MemoryTotal uint64        // bytes
}

// userHz is the unit of /proc/stat: a hundredth of a second on every architecture that Go knows (proc(5)).
const userHz = 10 * time.Millisecond

// Use reads the host's use from /proc/stat and /proc/meminfo.
func (h Host) Use() Use {
	mem := h.meminfo()
	u := Use{MemoryTotal: mem["MemTotal"], Memory: mem["MemTotal"] - mem["MemAvailable"]}
	for line := range strings.Lines(h.text("/proc/stat")) {
		f := strings.Fields(line)
		if len(f) < 9 || !strings.HasPrefix(f[0], "cpu") {
			continue
		}
		if f[0] != "cpu" {
			u.CPUs++
			continue
		}
		for i, ticks := range f[1:9] {
			if i == 3 || i == 4 { // idle and iowait
				continue
			}
			n, _ := strconv.ParseInt(ticks, 10, 64) // the kernel writes only numbers
			u.Busy += time.Duration(n) * userHz
		}
	}
	return u
}
