// Package first finds and ends the first process of a node for its runner, by what a journal and a pid file say of it.
package first

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"berth/internal/sys/proc"
)

// EndGrace is how long a killed init may take to end. It ends after all processes of its PID namespace, and one of them may
// have to write back memory first.
const EndGrace = 30 * time.Second

// ReadPID reads a pid file.
func ReadPID(file string) (int, error) {
	b, err := os.ReadFile(file)
	if err != nil {
		return 0, fmt.Errorf("read pid file: %w", err)
	}
	pid, err := strconv.Atoi(string(bytes.TrimSpace(b)))
	if err != nil || pid <= 1 {
		return 0, fmt.Errorf("read pid file %s: %q is not a process id", file, b)
	}
	return pid, nil
}

// InGroup reports whether a process is in group, or below it, in any hierarchy.
func InGroup(pid int, group string) (bool, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", pid))
	if err != nil {
		return false, fmt.Errorf("read cgroups of process %d: %w", pid, err)
	}
	for line := range strings.SplitSeq(strings.TrimSpace(string(b)), "\n") {
		_, rest, _ := strings.Cut(line, ":")
		_, path, _ := strings.Cut(rest, ":")
		if path == group || strings.HasPrefix(path, group+"/") {
			return true, nil
		}
	}
	return false, nil
}

// Verify returns an error unless the process runs, in the group.
func Verify(id proc.ID, group string) error {
	if !id.Alive() {
		return fmt.Errorf("find the node's init: process %d has ended", id.PID)
	}
	in, err := InGroup(id.PID, group)
	if err == nil && !in {
		err = fmt.Errorf("the node's init, process %d, is not in the group %s", id.PID, group)
	}
	return err
}

// Kill kills the process, and waits until it has ended. A process that has ended is no error. The zero value stands for one that
// was not journalled: the pid file may name it, or be cut off, or be old, so that it is killed only if it is in the group.
func Kill(ctx context.Context, id proc.ID, pidFile, group string) error {
	guessed := false
	if id.PID == 0 {
		pid, err := ReadPID(pidFile)
		if err == nil {
			id, err = proc.Of(pid)
		}
		if err != nil {
			return nil // no init that is known; the groups are killed in any case
		}
		guessed = true
	}
	pidfd, err := id.Open()
	if proc.Gone(err) {
		return nil
	}
	if err != nil {
		return err
	}
	defer pidfd.Close()
	if guessed { // asked after the pidfd was opened: the number cannot change hands any more
		if in, err := InGroup(id.PID, group); !in {
			if proc.Gone(err) {
				return nil
			}
			return err
		}
	}
	return killAndWait(ctx, pidfd, id.PID)
}

// killAndWait kills a process by its pidfd, and waits until it has ended. A process that has ended is no error. The init of a PID
// namespace ends last in it.
func killAndWait(ctx context.Context, pidfd *os.File, pid int) error {
	if err := proc.Signal(pidfd, unix.SIGKILL); err != nil && !errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("kill process %d: %w", pid, err)
	}
	ctx, cancel := context.WithTimeout(ctx, EndGrace)
	defer cancel()
	if err := proc.Wait(ctx, pidfd); err != nil {
		return fmt.Errorf("wait for the end of process %d, which was killed: %w", pid, err)
	}
	return nil
}
