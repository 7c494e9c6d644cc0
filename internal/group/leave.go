package group

import (
	"errors"
	"fmt"
	"path/filepath"
	"strconv"

	"berth/internal/host"
)

// Free moves processes out of the service or session that started them, as Leave does, if the top takes them.
func Free(h host.Cgroups, pids ...int) {
	for _, mount := range []string{h.V2, h.V1["name=systemd"]} {
		for _, pid := range pids {
			if mount != "" && pid != 0 {
				_ = WriteFile(filepath.Join(mount, "cgroup.procs"), strconv.Itoa(pid))
			}
		}
	}
}

// Leave moves this process out of the service or session that started it, to the top of the trees in which an init system
// tracks its units. systemd kills every process in a unit's group when the unit ends, but none at the top. If the top takes
// no process, as inside a container, the process stays where it is and the error says so.
func Leave(h host.Cgroups) error {
	var failed error
	for _, mount := range []string{h.V2, h.V1["name=systemd"]} {
		if mount == "" {
			continue
		}
		if err := WriteFile(filepath.Join(mount, "cgroup.procs"), "0"); err != nil {
			failed = errors.Join(failed, fmt.Errorf("leave the caller's group: %w", err))
		}
	}
	return failed
}
