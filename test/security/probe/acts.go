package main

import (
	"encoding/binary"
	"fmt"
	"os"
	"os/exec"
	"runtime/debug"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// signal sends signal 0 to a process and tries to trace it. Both show whether the process can be reached.
func signal(arg string) (string, error) {
	pid, err := strconv.Atoi(arg)
	if err != nil {
		return "", err
	}
	if err := unix.Kill(pid, 0); err != nil {
		return "", err
	}
	return "", unix.PtraceSeize(pid)
}

// connect connects to a Unix socket. A leading @ means an abstract one.
func connect(path string) (string, error) {
	for _, kind := range []int{unix.SOCK_STREAM, unix.SOCK_SEQPACKET} {
		fd, err := unix.Socket(unix.AF_UNIX, kind|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return "", err
		}
		err = unix.Connect(fd, &unix.SockaddrUnix{Name: path})
		unix.Close(fd)
		if err != unix.EPROTOTYPE {
			return "", err
		}
	}
	return "", unix.EPROTOTYPE
}

// install copies this program to a path and makes it set-user-id root, as far as the node can tell.
func install(path string) (string, error) {
	program, err := os.ReadFile("/proc/self/exe")
	if err != nil {
		return "", err
	}
	if err := os.WriteFile(path, program, 0o755); err != nil {
		return "", err
	}
	return "", os.Chmod(path, 0o755|os.ModeSetuid)
}

// empower copies this program to a path and gives it the file capability CAP_DAC_OVERRIDE (linux/capability.h).
func empower(path string) (string, error) {
	if _, err := install(path); err != nil {
		return "", err
	}
	if err := os.Chmod(path, 0o755); err != nil {
		return "", err
	}
	caps := make([]byte, 20)
	binary.LittleEndian.PutUint32(caps, 0x02000001) // VFS_CAP_REVISION_2, effective
	binary.LittleEndian.PutUint32(caps[4:], 1<<unix.CAP_DAC_OVERRIDE)
	return "", unix.Setxattr(path, "security.capability", caps, 0)
}

// hog allocates up to mib MiB of memory, unless it is killed before.
func hog(mib string) string {
	n, err := strconv.Atoi(mib)
	if err != nil {
		return err.Error()
	}
	debug.SetGCPercent(-1)
	var held [][]byte
	for range n {
		b := make([]byte, 1<<20)
		for i := 0; i < len(b); i += 4096 {
			b[i] = 1
		}
		held = append(held, b)
	}
	return fmt.Sprintf("%d MiB held", len(held))
}

// bomb starts copies of itself, which do the same, until the kernel refuses. It returns how often it succeeded. It ends by itself.
func bomb() map[string]int {
	end := time.Now().Add(time.Minute)
	started, refused := 0, 0
	for time.Now().Before(end) {
		if err := exec.Command("/proc/self/exe", "bomb").Start(); err != nil {
			refused++
			time.Sleep(20 * time.Millisecond)
			continue
		}
		started++
	}
	return map[string]int{"started": started, "refused": refused}
}

func sleep() string {
	time.Sleep(time.Hour)
	return ""
}

// prctls returns what this process has of its parent that only prctl(2) shows; -1 on a kernel without.
func prctls() map[string]int {
	all := map[string]int{"timer slack": unix.PR_GET_TIMERSLACK, "merging": unix.PR_GET_MEMORY_MERGE, "memory failure": unix.PR_MCE_KILL_GET}
	for name, get := range all {
		got, err := unix.PrctlRetInt(get, 0, 0, 0, 0)
		if err != nil {
			got = -1
		}
		all[name] = got
	}
	return all
}
