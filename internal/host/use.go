package host

import (
	"strconv"
	"strings"
	"time"
)

// Use is what the host uses now.
type Use struct {
	CPUs        int           // online
	Busy        time.Duration // that they have worked since boot, summed over CPUs
	Memory      uint64        // bytes, without what the kernel would give away at once
	MemoryTotal uint64        // bytes
}

// userHz is the unit of /proc/stat: a hundredth of a second on every architecture that Go knows (proc(5)).
const userHz = 10 * time.Millisecond

// Use reads it from /proc/stat and /proc/meminfo.
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
			if i == 3 || i == 4 { // idle, and idle while a disk is waited for
				continue
			}
			n, _ := strconv.ParseInt(ticks, 10, 64) // numbers, as the kernel writes them
			u.Busy += time.Duration(n) * userHz
		}
	}
	return u
}
