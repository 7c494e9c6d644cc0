package proc

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Signal sends a signal to the process that a pidfd stands for. The error is unix.ESRCH if it has ended.
func Signal(pidfd *os.File, s unix.Signal) error {
	conn, err := pidfd.SyscallConn()
	if err != nil {
		return err
	}
	if ctlErr := conn.Control(func(fd uintptr) { err = unix.PidfdSendSignal(int(fd), s, nil, 0) }); ctlErr != nil {
		return ctlErr
	}
	if err != nil {
		return fmt.Errorf("send %s: %w", SignalText(s), err)
	}
	return nil
}

// Wait waits until the process of a pidfd has ended (a zombie has), or until ctx ends; then the error is the context's. It
// holds no thread. One call at a time for each pidfd.
func Wait(ctx context.Context, pidfd *os.File) error {
	conn, err := pidfd.SyscallConn()
	if err != nil {
		return err
	}
	_ = pidfd.SetReadDeadline(time.Time{}) // of an earlier call
	stop := context.AfterFunc(ctx, func() { _ = pidfd.SetReadDeadline(time.Unix(1, 0)) })
	defer stop()
	err = conn.Read(func(fd uintptr) bool {
		n, _ := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 0)
		return n > 0
	})
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return ctx.Err()
	}
	return err
}

// WaitFor is Wait for at most some time. It reports whether the process has ended.
func WaitFor(ctx context.Context, pidfd *os.File, most time.Duration) bool {
	ctx, cancel := context.WithTimeout(ctx, most)
	defer cancel()
	return Wait(ctx, pidfd) == nil
}

// Exit returns the wait status of an ended process that need not be a child of this one. A zombie's is in its stat, which
// only root may read; the kernel tells that of a reaped process by its pidfd, which may be nil. ok is false where the kernel does not know
// it, or cannot tell (reaped, before Linux 6.15).
func Exit(pidfd *os.File, id ID) (ws unix.WaitStatus, ok bool) {
	if s, err := Read(id.PID); err == nil && s.State == 'Z' && s.Start == id.Start {
		code, err := strconv.ParseUint(s.exit, 10, 32)
		return unix.WaitStatus(code), err == nil
	}
	if pidfd == nil {
		return 0, false
	}
	return ReapedExit(pidfd)
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

// Reap waits for the end of a child of this process, and returns how it ended.
func Reap(pid int) (ws unix.WaitStatus, err error) {
	for {
		if _, err = unix.Wait4(pid, &ws, 0, nil); !errors.Is(err, unix.EINTR) {
			return ws, err
		}
	}
}

// ReapedExit returns the wait status of a process that its parent has reaped.
func ReapedExit(pidfd *os.File) (ws unix.WaitStatus, ok bool) {
	info := pidfdInfo{mask: pidfdInfoExit}
	conn, err := pidfd.SyscallConn()
	if err != nil {
		return 0, false
	}
	var errno unix.Errno
	err = conn.Control(func(fd uintptr) {
		_, _, errno = unix.Syscall(unix.SYS_IOCTL, fd, pidfdGetInfo, uintptr(unsafe.Pointer(&info)))
	})
	if err != nil || errno != 0 || info.mask&pidfdInfoExit == 0 {
		return 0, false
	}
	return unix.WaitStatus(info.exitCode), true
}
