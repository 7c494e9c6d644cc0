package group

import (
	"errors"
	"maps"
	"path/filepath"
	"slices"
	"strconv"

	"golang.org/x/sys/unix"

	"berth/internal/sys/proc"
)

// Tasks returns the parts of a process that may be in groups of their own: on v1 each of its threads, on v2 the process as a whole.
func (h Hierarchy) Tasks(pid int) []int {
	if h.V2 {
		return []int{pid}
	}
	return proc.Threads(pid)
}

// TasksIn returns those of all processes that are in a group and in the groups inside it.
func (h Hierarchy) TasksIn(path string) ([]int, error) {
	all, err := listed([]place{h.at(path)}, h.taskFile())
	return slices.Sorted(maps.Keys(all)), err
}

// taskFile is the control file that lists and takes tasks.
func (h Hierarchy) taskFile() string {
	if h.V2 {
		return "cgroup.procs"
	}
	return "tasks"
}

// MoveTask moves a task to a group, and no other task of its process. One that has ended is no error.
func (h Hierarchy) MoveTask(id int, to string) error {
	err := WriteFile(filepath.Join(h.Mount, to, h.taskFile()), strconv.Itoa(id))
	if errors.Is(err, unix.ESRCH) {
		return nil
	}
	return err
}
