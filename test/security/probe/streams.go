package main

import (
	"fmt"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// forged is the text that the probe tries to write where it must not.
const forged = "forged\n"

// streams tries operations beyond reading and writing on each standard stream, and reports the type of each.
func streams() map[string]string {
	all := map[string]string{}
	for fd := range 3 {
		all[strconv.Itoa(fd)] = kind(fd)
		for what, became := range tried(abuses(fd)) {
			all[fmt.Sprintf("%d %s", fd, what)] = became
		}
	}
	return all
}

func kind(fd int) string {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return name(err)
	}
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFIFO:
		return "pipe"
	case unix.S_IFCHR:
		return fmt.Sprintf("device %d:%d", unix.Major(st.Rdev), unix.Minor(st.Rdev))
	}
	return fmt.Sprintf("type %o", st.Mode&unix.S_IFMT)
}

func abuses(fd int) map[string]func() error {
	path := fmt.Sprintf("/proc/self/fd/%d", fd)
	flags := func(change func(int) int) func() error {
		return func() error {
			was, err := unix.FcntlInt(uintptr(fd), unix.F_GETFL, 0)
			if err == nil {
				_, err = unix.FcntlInt(uintptr(fd), unix.F_SETFL, change(was))
			}
			return err
		}
	}
	reopened := func(how int, use func(int) error) func() error {
		return func() error {
			again, err := unix.Open(path, how|unix.O_NONBLOCK|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
			if err != nil {
				return err
			}
			defer unix.Close(again)
			return use(again)
		}
	}
	typed := byte('X')
	return map[string]func() error{
		"set-user-id":  func() error { return unix.Fchmod(fd, 0o4777) },
		"owner":        func() error { return unix.Fchown(fd, 1, 1) },
		"cut":          func() error { return unix.Ftruncate(fd, 0) },
		"extend":       func() error { return unix.Fallocate(fd, unix.FALLOC_FL_KEEP_SIZE, 0, 1<<20) },
		"attribute":    func() error { return unix.Fsetxattr(fd, "user.forged", []byte("x"), 0) },
		"rewrite":      func() error { _, err := unix.Pwrite(fd, []byte(forged), 0); return err },
		"no append":    flags(func(f int) int { return f &^ unix.O_APPEND }),
		"non-blocking": flags(func(f int) int { return f | unix.O_NONBLOCK }),
		"signals":      flags(func(f int) int { return f | unix.O_ASYNC }),
		"lock":         func() error { return unix.Flock(fd, unix.LOCK_EX|unix.LOCK_NB) },
		"pipe size":    func() error { _, err := unix.FcntlInt(uintptr(fd), unix.F_SETPIPE_SZ, 1<<19); return err },
		"below":        func() error { _, err := os.ReadDir(path); return err },
		"write again":  reopened(unix.O_WRONLY, func(f int) error { _, err := unix.Write(f, []byte(forged)); return err }),
		"truncate":     reopened(unix.O_WRONLY|unix.O_TRUNC, func(int) error { return nil }),
		"read again":   reopened(unix.O_RDONLY, func(f int) error { _, err := unix.Read(f, make([]byte, 64)); return err }),
		"make it mine": func() error { return unix.IoctlSetInt(fd, unix.TIOCSCTTY, 0) },
		"type":         func() error { return ioctl(fd, unix.TIOCSTI, &typed) },
		"paste":        func() error { return ioctl(fd, unix.TIOCLINUX, &typed) },
		"exclusive":    func() error { return unix.IoctlSetInt(fd, unix.TIOCEXCL, 0) },
		"resize":       func() error { return unix.IoctlSetWinsize(fd, unix.TIOCSWINSZ, &unix.Winsize{Row: 1, Col: 1}) },
		"mode": func() error {
			t, err := unix.IoctlGetTermios(fd, unix.TCGETS)
			if err == nil {
				t.Lflag &^= unix.ECHO
				err = unix.IoctlSetTermios(fd, unix.TCSETS, t)
			}
			return err
		},
		"peer":     func() error { _, err := unix.Getpeername(fd); return err },
		"shutdown": func() error { return unix.Shutdown(fd, unix.SHUT_RDWR) },
	}
}
