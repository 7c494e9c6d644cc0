package place

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"berth/internal/host/group"
	"berth/internal/sys/fault"
	"berth/internal/sys/refuse"
)

// patience is how long groups may stay filled: a server may put threads into them until it sees the new generation.
const patience = 3 * time.Second

// Remove removes the groups of nodes, and returns those that are left. Processes and threads in them are moved out, never killed:
// they are part of a file server on which other clients may depend. Tell was called before, so nothing is put into the groups any
// more. A group that is not there is no error.
func (f *FS) Remove(nodes ...string) (left []string, err error) {
	var failed []error
	until := time.Now().Add(patience)
	for _, n := range nodes {
		if err := f.remove(n, until); err != nil {
			left, failed = append(left, n), append(failed, err)
		}
		fault.Point("group of a node removed on a file server")
	}
	return left, errors.Join(failed...)
}

func (f *FS) remove(node string, until time.Time) error {
	dir := filepath.Join(f.Groups(), node)
	for ; ; time.Sleep(5 * time.Millisecond) {
		err := unix.Rmdir(dir)
		if err == nil || group.Gone(err) {
			return nil
		}
		if !errors.Is(err, unix.EBUSY) {
			return fmt.Errorf("remove the cgroup %s: %w", dir, err)
		}
		if err := f.empty(node); err != nil {
			return err
		}
		if time.Now().After(until) && unix.Rmdir(dir) != nil {
			return refuse.Busyf("the cgroup %s fills again and again: which program writes to it?", dir)
		}
	}
}

// empty moves the processes and threads of a node's group out of it.
func (f *FS) empty(node string) error {
	from := filepath.Join(f.Groups(), node)
	file := "tasks"
	if f.at.V2 {
		file = "cgroup.procs"
	}
	text, err := group.ReadFile(filepath.Join(from, file))
	if group.Gone(err) {
		return nil
	}
	if err != nil {
		return err
	}
	for line := range strings.Lines(text) {
		id, err := strconv.Atoi(strings.TrimSpace(line))
		if err != nil {
			return fmt.Errorf("read %s: %q is no process", filepath.Join(from, file), line)
		}
		to := f.backTo(node, id)
		err = group.WriteFile(filepath.Join(f.at.Mount, to, file), strconv.Itoa(id))
		if err != nil && !errors.Is(err, unix.ESRCH) {
			return fmt.Errorf("move process %d out of %s: %w", id, from, err)
		}
	}
	return nil
}

// backTo returns the group to which a process or thread of a node's group goes back. A thread of a pool, whose process is elsewhere,
// goes to the group Rest. A whole process goes to where its parent is, which started it.
func (f *FS) backTo(node string, id int) string {
	leader := field(id, "Tgid")
	if node != Rest && !f.at.V2 {
		if at, err := f.at.GroupOf(leader); err == nil && at != f.Group(node) {
			return f.top + "/" + Rest
		}
	}
	at, err := f.at.GroupOf(field(leader, "PPid"))
	if err != nil || strings.HasPrefix(at+"/", f.top+"/") {
		return "" // the top: a root group takes every process
	}
	return at
}

// field reads a number of a process's status; 0 if it has ended.
func field(pid int, name string) int {
	text, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "status"))
	if err != nil {
		return 0
	}
	for line := range strings.Lines(string(text)) {
		if value, ok := strings.CutPrefix(line, name+":"); ok {
			n, _ := strconv.Atoi(strings.TrimSpace(value))
			return n
		}
	}
	return 0
}
