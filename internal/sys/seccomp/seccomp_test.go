package seccomp

import (
	"errors"
	"runtime"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// TestThread: what a filter takes is taken, and no more.
func TestThread(t *testing.T) {
	if _, known := machines[runtime.GOARCH]; !known {
		t.Skip("the filter is for other architectures")
	}
	try := func(f Filter) (inet, local, key, program error) {
		done := make(chan struct{})
		go func() {
			defer close(done)
			runtime.LockOSThread() // never unlocked: the thread ends with its filter
			inet = unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
			if inet = errors.Join(inet, f.Thread()); inet != nil {
				return
			}
			inet, local = socket(unix.AF_INET), socket(unix.AF_UNIX)
			_, key = unix.KeyctlInt(unix.KEYCTL_GET_KEYRING_ID, unix.KEY_SPEC_SESSION_KEYRING, 0, 0, 0)
			_, _, errno := unix.Syscall(unix.SYS_EXECVE, 0, 0, 0) // no name: EFAULT, if it gets so far
			program = errno
		}()
		<-done
		return inet, local, key, program
	}
	inet, local, key, program := try(Filter{})
	if !errors.Is(inet, unix.EPERM) || local != nil || !errors.Is(key, unix.EPERM) || !errors.Is(program, unix.EPERM) {
		t.Errorf("all is taken: network %v, AF_UNIX %v, keys %v, programs %v", inet, local, key, program)
	}
	inet, local, key, program = try(Filter{Start: true, Network: true})
	if inet != nil || local != nil || !errors.Is(key, unix.EPERM) || !errors.Is(program, unix.EFAULT) {
		t.Errorf("programs and the network stay: network %v, AF_UNIX %v, keys %v, programs %v", inet, local, key, program)
	}
}

func socket(family int) error {
	fd, err := unix.Socket(family, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err == nil {
		err = syscall.Close(fd)
	}
	return err
}
