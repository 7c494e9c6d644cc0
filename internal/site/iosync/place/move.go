package place

import (
	"errors"
	"fmt"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"berth/internal/host/group"
)

// Put puts a whole process into the group of a node, if it is not there. A process of a node of this host stays in its node. A process
// that has ended is no error.
func (f *FS) Put(node string, pid int) error {
	at, err := f.at.GroupOf(pid)
	if err != nil {
		return ended(pid, err)
	}
	if at == f.Group(node) || strings.HasPrefix(at, f.own+"/") {
		return nil
	}
	return f.move(pid, f.Group(node))
}

// Back puts a process that is in the group of a node to where its parent is.
func (f *FS) Back(node string, pid int) error {
	at, err := f.at.GroupOf(pid)
	if err != nil {
		return ended(pid, err)
	}
	if at != f.Group(node) {
		return nil
	}
	return f.move(pid, f.backTo(node, pid))
}

func (f *FS) move(pid int, to string) error {
	err := group.WriteFile(filepath.Join(f.at.Mount, to, "cgroup.procs"), strconv.Itoa(pid))
	if err != nil {
		return ended(pid, fmt.Errorf("move process %d to the cgroup %s: %w", pid, to, err))
	}
	return nil
}

// ended is err, or nil if there is no such process any more.
func ended(pid int, err error) error {
	if errors.Is(unix.Kill(pid, 0), unix.ESRCH) {
		return nil
	}
	return err
}
