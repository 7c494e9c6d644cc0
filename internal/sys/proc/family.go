package proc

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// Family returns a process and its descendants. It misses descendants whose parent has ended.
func Family(pid int) []int {
	all := []int{pid}
	for i := 0; i < len(all); i++ {
		lists, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", all[i])) // the pattern is valid
		for _, l := range lists {
			text, _ := os.ReadFile(l) // the process has ended: no children
			for f := range strings.FieldsSeq(string(text)) {
				if child, err := strconv.Atoi(f); err == nil && !slices.Contains(all, child) {
					all = append(all, child)
				}
			}
		}
	}
	return all
}

// Containers are the processes of this host, by their PID and mount namespaces together.
type Containers map[string][]int

// ReadContainers looks at all processes.
func ReadContainers() Containers {
	all := Containers{}
	entries, _ := os.ReadDir("/proc")
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		if in := containerOf(e.Name()); in != "" { // else it has ended
			all[in] = append(all[in], pid)
		}
	}
	return all
}

// Of returns the processes of the container whose process 1 is pid, in ascending order: the descendants of that process, and
// those in its PID and mount namespaces, which another program started in it. A process in only one of the two does not count.
// Where process 1 shares the namespaces of this process, it has its descendants alone.
func (c Containers) Of(pid int) []int {
	all := Family(pid)
	if in := containerOf(strconv.Itoa(pid)); in != containerOf("self") {
		all = append(all, c[in]...)
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// containerOf names the PID and mount namespaces of a process; "" if it is gone.
func containerOf(pid string) string {
	in, err1 := os.Readlink("/proc/" + pid + "/ns/pid")
	mnt, err2 := os.Readlink("/proc/" + pid + "/ns/mnt")
	if err1 != nil || err2 != nil {
		return ""
	}
	return in + mnt
}

// Threads returns the threads of a process; none if it is gone.
func Threads(pid int) (all []int) {
	entries, _ := os.ReadDir(fmt.Sprintf("/proc/%d/task", pid))
	for _, e := range entries {
		if tid, err := strconv.Atoi(e.Name()); err == nil {
			all = append(all, tid)
		}
	}
	return all
}
