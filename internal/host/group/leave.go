package group

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"

	"berth/internal/host"
	"berth/internal/sys/fork"
	"berth/internal/sys/proc"
)

// outside are the tops of the trees in which an init system tracks its units, and of v1's memory tree, in which it limits them. systemd
// kills every process in a unit's group when the unit ends, and the kernel any process in a group that is at its limit; none at the top.
func outside(h host.Cgroups) Entry {
	e := Entry{V2: h.V2}
	for _, controller := range []string{"name=systemd", "memory"} {
		if mount := h.V1[controller]; mount != "" {
			e.V1 = append(e.V1, V1Group{Mount: mount, Controller: controller})
		}
	}
	return e
}

// mounts are the folders of an entry at the top.
func (e Entry) mounts() (all []string) {
	if e.V2 != "" {
		all = append(all, e.V2)
	}
	for _, g := range e.V1 {
		all = append(all, g.Mount)
	}
	return all
}

// StartOutside starts a command outside of the service or session of this process, as Leave moves processes, from its first instruction;
// beside this process if the top takes no process. The calling OS thread must be locked, and cmd.SysProcAttr set. The caller calls fork.Wait.
func StartOutside(h host.Cgroups, cmd *exec.Cmd) error {
	gate, err := outside(h).Open()
	if err == nil {
		defer gate.Close()
		if err = gate.Start(cmd); err == nil || cmd.Process != nil {
			return err
		}
	}
	cmd.SysProcAttr.UseCgroupFD, cmd.SysProcAttr.CgroupFD = false, 0
	return fork.Start(cmd)
}

// Together returns a process and its descendants, which belong into one group; of Berth's agent the process alone, because what it starts for
// its clients and nodes leaves its group, to outlive it.
func Together(pid int) []int {
	if proc.Name(pid) == "berthd" {
		return []int{pid}
	}
	return proc.Family(pid)
}

// Free moves processes out of the service or session that started them, as Leave does, if the top takes them.
func Free(h host.Cgroups, pids ...int) {
	for _, hh := range Hierarchies(h) {
		for _, pid := range pids {
			if pid != 0 {
				_ = hh.toTop(pid)
			}
		}
	}
}

// Leave moves this process out of the service or session that started it, and out of all other groups of its caller: their limits, CPUs
// and freezer are not for it. If the top takes no process, as inside a container, the process stays where it is; the error says so of
// the trees by which an init system or the kernel would end it.
func Leave(h host.Cgroups) error {
	var failed error
	ends := outside(h).mounts()
	for _, hh := range Hierarchies(h) {
		if err := hh.toTop(os.Getpid()); err != nil && slices.Contains(ends, hh.Mount) {
			failed = errors.Join(failed, fmt.Errorf("leave the caller's group: %w", err))
		}
	}
	return failed
}

// toTop moves a process to the top of a hierarchy, unless it is there: the kernel takes some milliseconds for each move (enterV1).
func (h Hierarchy) toTop(pid int) error {
	if at, err := h.GroupOf(pid); err == nil && at == "" {
		return nil
	}
	return WriteFile(filepath.Join(h.Mount, "cgroup.procs"), strconv.Itoa(pid))
}
