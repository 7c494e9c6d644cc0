package oci

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

// endGrace is how long a killed init may take to end. It ends after all processes of its PID namespace, and one of them may
// have to write back memory first.
const endGrace = 30 * time.Second

// readPID reads a pid file.
func readPID(file string) (int, error) {
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

func procPath(pid int, name string) string { return "/proc/" + strconv.Itoa(pid) + "/" + name }

// inGroup reports whether a process is in group, or below it, in any hierarchy.
func inGroup(pid int, group string) (bool, error) {
	b, err := os.ReadFile(procPath(pid, "cgroup"))
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

// execGrace is how long an init may take from start to its command: usually a fraction of a millisecond, more if the
// image is on a network file system.
const execGrace = 30 * time.Second

// waitExec waits until the process runs an executable other than (dev, ino), or has ended.
func waitExec(ctx context.Context, pid int, dev, ino uint64) error {
	ctx, cancel := context.WithTimeout(ctx, execGrace)
	defer cancel()
	for pause := 50 * time.Microsecond; ; pause = min(2*pause, 5*time.Millisecond) {
		var exe unix.Stat_t
		if unix.Stat(procPath(pid, "exe"), &exe) != nil || exe.Dev != dev || exe.Ino != ino {
			return nil // a zombie has no executable
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("wait for process %d to run the node's command: %w", pid, ctx.Err())
		case <-time.After(pause):
		}
	}
}

// killAndWait kills a process by its pidfd, and waits until it has ended. A process that has ended is no error. The init of a PID
// namespace ends last in it.
func killAndWait(ctx context.Context, pidfd *os.File, pid int) error {
	if err := proc.Signal(pidfd, unix.SIGKILL); err != nil && !errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("kill process %d: %w", pid, err)
	}
	ctx, cancel := context.WithTimeout(ctx, endGrace)
	defer cancel()
	if err := proc.Wait(ctx, pidfd); err != nil {
		return fmt.Errorf("wait for the end of process %d, which was killed: %w", pid, err)
	}
	return nil
}
