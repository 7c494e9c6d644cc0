package node

import (
	"os"

	"berth/internal/cgroup"
)

// leaveUnit makes the keeper outlive the service or session in which the first node was started, and gives it a name
// in ps and top: it was started as /proc/self/exe.
func (k *keeper) leaveUnit() {
	h, err := k.b.cgroups()
	if err == nil {
		err = cgroup.Leave(h)
	}
	if err != nil {
		k.log.Warn("the keeper ends with the service that started it", "err", err)
	}
	_ = os.WriteFile("/proc/self/comm", []byte("berth-keeper"), 0) // a nicety
}
