package oci

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
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

// stat reads the state letter and the start time, in clock ticks since boot, of a process (fields 3 and 22 of
// /proc/PID/stat). The error is fs.ErrNotExist or ESRCH if the process is gone.
func stat(pid int) (state byte, started uint64, err error) {
	b, err := os.ReadFile(procPath(pid, "stat"))
	if err != nil {
		return 0, 0, fmt.Errorf("read process %d: %w", pid, err)
	}
	// The name (field 2) may hold anything, but it ends at the last parenthesis.
	fields := bytes.Fields(b[bytes.LastIndexByte(b, ')')+1:])
	if len(fields) < 20 {
		return 0, 0, fmt.Errorf("read process %d: stat has %d fields", pid, len(fields)+2)
	}
	started, err = strconv.ParseUint(string(fields[19]), 10, 64)
	if err != nil {
		return 0, 0, fmt.Errorf("read process %d: start time: %w", pid, err)
	}
	return fields[0][0], started, nil
}

func procPath(pid int, name string) string { return "/proc/" + strconv.Itoa(pid) + "/" + name }

func gone(err error) bool { return errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ESRCH) }

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

// killAndWait kills the process if same reports that it is still the intended one, and waits until it has ended. It calls
// same after it opened a pidfd, so that the PID cannot be reused in between. A process that is gone is no error.
func killAndWait(ctx context.Context, pid int, same func() (bool, error)) error {
	fd, err := unix.PidfdOpen(pid, 0)
	if errors.Is(err, unix.ESRCH) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("open process %d: %w", pid, err)
	}
	defer unix.Close(fd)
	if ok, err := same(); !ok || err != nil {
		if gone(err) {
			return nil
		}
		return err
	}
	if err := unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0); err != nil && !errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("kill process %d: %w", pid, err)
	}
	return waitEnd(ctx, fd, pid)
}

// waitEnd waits until the process has ended; a zombie counts as ended. The init of a PID namespace ends last in it.
func waitEnd(ctx context.Context, pidfd, pid int) error {
	ctx, cancel := context.WithTimeout(ctx, endGrace)
	defer cancel()
	for {
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(pidfd), Events: unix.POLLIN}}, 50)
		switch {
		case err != nil && !errors.Is(err, unix.EINTR):
			return fmt.Errorf("wait for process %d: %w", pid, err)
		case n > 0:
			return nil
		case ctx.Err() != nil:
			return fmt.Errorf("wait for the end of process %d, which was killed: %w", pid, ctx.Err())
		}
	}
}
