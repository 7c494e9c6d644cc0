package node

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strconv"
	"unsafe"

	"golang.org/x/sys/unix"
)

// startTime is when a process started, in clock ticks since boot: field 22 of /proc/PID/stat. With the pid it names a
// process for as long as the machine runs. ok is false for a process that is gone or a zombie; one whose first thread
// alone has ended (its state is Z too) lives on in the others.
func startTime(pid int) (start uint64, ok bool) {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return 0, false
	}
	// The name (field 2) may hold anything; what follows its last ')' is regular.
	fields := bytes.Fields(b[bytes.LastIndexByte(b, ')')+1:])
	if len(fields) < 20 {
		return 0, false
	}
	start, err = strconv.ParseUint(string(fields[19]), 10, 64)
	threads, _ := strconv.Atoi(string(fields[17]))
	ended := fields[0][0] == 'X' || fields[0][0] == 'Z' && threads <= 1
	return start, err == nil && !ended
}

func alive(pid int, start uint64) bool {
	s, ok := startTime(pid)
	return ok && s == start
}

// openInit opens a pidfd of the process, if it is still the one that started then (a zombie counts).
func openInit(pid int, start uint64) (*os.File, error) {
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return nil, fmt.Errorf("open process %d: %w", pid, err)
	}
	f := os.NewFile(uintptr(fd), "pidfd")
	if s, _ := startTime(pid); s != start {
		f.Close()
		return nil, fmt.Errorf("open process %d: %w", pid, unix.ESRCH)
	}
	return f, nil
}

// waitPidfd waits until the process has ended, or for at most ms milliseconds (-1: for ever); it reports whether it ended.
func waitPidfd(pidfd *os.File, ms int) bool {
	for {
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(pidfd.Fd()), Events: unix.POLLIN}}, ms)
		if !errors.Is(err, unix.EINTR) {
			return n > 0
		}
	}
}

// pidfdInfo is struct pidfd_info of <linux/pidfd.h>, its first published size.
type pidfdInfo struct {
	mask, cgroupid                                             uint64
	pid, tgid, ppid, ruid, rgid, euid, egid, suid, sgid, fsuid uint32
	fsgid                                                      uint32
	exitCode                                                   int32
}

const (
	pidfdGetInfo  = 0xC040FF0B // _IOWR(0xFF, 11, struct pidfd_info), 64 bytes
	pidfdInfoExit = 1 << 3     // exit code of a process that was reaped: Linux 6.15
)

// exitOf asks the kernel for the wait status of an ended process that is somebody else's child: a zombie's is in its
// stat, one that was reaped tells it by its pidfd. ok is false where the kernel cannot tell (before 6.15).
func exitOf(pidfd *os.File, pid int, start uint64) (ws unix.WaitStatus, ok bool) {
	if ws, ok := zombieExit(pid, start); ok {
		return ws, true
	}
	return reapedExit(pidfd)
}

// zombieExit reads the wait status of a zombie: field 52 of its stat, which only root may read (proc_pid_stat(5)).
func zombieExit(pid int, start uint64) (ws unix.WaitStatus, ok bool) {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return 0, false
	}
	fields := bytes.Fields(b[bytes.LastIndexByte(b, ')')+1:])
	if len(fields) < 50 || fields[0][0] != 'Z' || string(fields[19]) != strconv.FormatUint(start, 10) {
		return 0, false
	}
	code, err := strconv.ParseUint(string(fields[49]), 10, 32)
	return unix.WaitStatus(code), err == nil
}

// reapedExit asks a pidfd for the wait status of a process that was reaped.
func reapedExit(pidfd *os.File) (ws unix.WaitStatus, ok bool) {
	info := pidfdInfo{mask: pidfdInfoExit}
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, pidfd.Fd(), pidfdGetInfo, uintptr(unsafe.Pointer(&info)))
	if errno != 0 || info.mask&pidfdInfoExit == 0 {
		return 0, false
	}
	return unix.WaitStatus(info.exitCode), true
}

// handles reports whether the process has a handler for the signal, or blocks it, as those do that fetch their signals
// (signalfd: systemd; sigwait: busybox init, tini). To an init that does neither the kernel does not deliver it
// (pid_namespaces(7)).
func handles(pid int, sig unix.Signal) bool {
	// In sigwait a process seems to block nothing: the kernel keeps the real mask where /proc does not show it.
	if call, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/syscall"); err == nil {
		if bytes.HasPrefix(call, []byte(strconv.Itoa(unix.SYS_RT_SIGTIMEDWAIT)+" ")) {
			return true
		}
	}
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/status")
	if err != nil {
		return false
	}
	for line := range bytes.Lines(b) {
		name, mask, _ := bytes.Cut(line, []byte(":"))
		if string(name) != "SigCgt" && string(name) != "SigBlk" {
			continue
		}
		m, err := strconv.ParseUint(string(bytes.TrimSpace(mask)), 16, 64)
		if err == nil && m&(1<<(uint(sig)-1)) != 0 {
			return true
		}
	}
	return false
}
