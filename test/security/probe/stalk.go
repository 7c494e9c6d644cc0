package main

import (
	"fmt"
	"io"
	"os"
	ossignal "os/signal"
	"strings"
	"sync/atomic"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// stalked is what the probe saw of processes that entered the node.
type stalked struct {
	Entering int               `json:"entering"` // processes that did not yet run a file of the node when first seen
	Own      map[string]int    `json:"own"`      // what it could do to commands that already ran, and how often
	Faults   map[string]string `json:"faults"`   // what it could do to a process that did not, and that process's program
}

// stalker attacks processes that enter the node before they execute the command.
type stalker struct {
	all     stalked
	root    unix.Stat_t
	seen    map[int]bool
	program map[string]int // open programs that are not the node's, by the target of /proc/PID/exe
}

// stalk attacks entering processes until its input ends. It must run as the node's root.
func stalk() stalked {
	var stop atomic.Bool
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		stop.Store(true)
	}()
	s := &stalker{all: stalked{Own: map[string]int{}, Faults: map[string]string{}}, seen: map[int]bool{}, program: map[string]int{}}
	if err := unix.Stat("/", &s.root); err != nil {
		s.all.Faults["stat /"] = err.Error()
	}
	self := os.Getpid()
	for !stop.Load() {
		for _, pid := range numbers("/proc") {
			if pid != 1 && pid != self {
				s.attack(pid)
			}
		}
	}
	s.overwrite()
	return s.all
}

// inside reports whether a process already runs a file of the node. Such a process may be attacked.
func (s *stalker) inside(pid int) (link string, own bool) {
	link, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", pid))
	if err != nil {
		return name(err), false
	}
	var theirs, ours unix.Stat_t
	if err := unix.Stat(fmt.Sprintf("/proc/%d/exe", pid), &theirs); err != nil {
		return name(err), false
	}
	if unix.Stat(link, &ours) != nil {
		return link, false
	}
	return link, theirs.Dev == ours.Dev && theirs.Ino == ours.Ino
}

func (s *stalker) attack(pid int) {
	if link, own := s.inside(pid); !own && !s.seen[pid] {
		s.all.Entering++
		s.seen[pid] = true
		s.keep(pid, link)
	}
	for what, try := range s.attempts(pid) {
		if try() != nil {
			continue
		}
		link, own := s.inside(pid)
		if link == "ENOENT" || link == "ESRCH" { // it ended: its program is unknown
			continue
		}
		if own {
			s.all.Own[what]++
		} else {
			s.all.Faults[what] = link
		}
	}
}

// keep opens the program of an entering process, to write to it after the process has ended.
func (s *stalker) keep(pid int, link string) {
	if _, kept := s.program[link]; kept {
		return
	}
	if fd, err := unix.Open(fmt.Sprintf("/proc/%d/exe", pid), unix.O_RDONLY|unix.O_CLOEXEC, 0); err == nil {
		s.program[link] = fd
	}
}

// overwrite tries to write to each kept program. It writes the program's own first byte, so success does no harm.
func (s *stalker) overwrite() {
	for link, fd := range s.program {
		if strings.HasPrefix(link, "/memfd:") { // a copy in memory, which disappeared with its process
			continue
		}
		again, err := unix.Open(fmt.Sprintf("/proc/self/fd/%d", fd), unix.O_WRONLY|unix.O_CLOEXEC, 0)
		if err == nil {
			if _, err = unix.Pwrite(again, []byte{0x7f}, 0); err == nil {
				s.all.Faults["overwrite the program"] = link
			}
			unix.Close(again)
		}
	}
}

func (s *stalker) attempts(pid int) map[string]func() error {
	file := func(what string, how int) func() error {
		return func() error {
			fd, err := unix.Open(fmt.Sprintf("/proc/%d/%s", pid, what), how|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
			if err != nil {
				return err
			}
			defer unix.Close(fd)
			if what == "environ" || what == "maps" { // the kernel also checks access to these at each read
				if n, err := unix.Pread(fd, make([]byte, 1), 0); err != nil || n == 0 {
					return unix.EIO
				}
			}
			return nil
		}
	}
	return map[string]func() error{
		"write to its program": file("exe", unix.O_WRONLY),
		"write to its memory":  file("mem", unix.O_RDWR),
		"read its environment": file("environ", unix.O_RDONLY),
		"open its first file":  file("fd/0", unix.O_RDONLY),
		"tell its first file":  func() error { _, err := os.Readlink(fmt.Sprintf("/proc/%d/fd/0", pid)); return err },
		"open its root":        file("root", unix.O_RDONLY|unix.O_DIRECTORY),
		"open its folder":      file("cwd", unix.O_RDONLY|unix.O_DIRECTORY),
		"read its memory map":  file("maps", unix.O_RDONLY),
		"take its descriptor": func() error {
			fd, err := unix.PidfdOpen(pid, 0)
			if err != nil {
				return err
			}
			defer unix.Close(fd)
			got, err := unix.PidfdGetfd(fd, 0, 0)
			if err == nil {
				unix.Close(got)
			}
			return err
		},
		"read its words": func() error {
			b := make([]byte, 1)
			local, remote := []unix.Iovec{{Base: &b[0], Len: 1}}, []unix.RemoteIovec{{Base: uintptr(unsafe.Pointer(&b[0])), Len: 1}}
			_, err := unix.ProcessVMReadv(pid, local, remote, 0)
			if err == unix.EFAULT { // access was granted
				err = nil
			}
			return err
		},
	}
}

// reach signals and renices all processes that it can address. No process of the host may be among them.
func reach() map[string]string {
	ossignal.Ignore(syscall.SIGTERM)
	return tried(map[string]func() error{
		"the group":       func() error { return unix.Kill(0, unix.SIGTERM) },
		"everybody":       func() error { return unix.Kill(-1, unix.SIGTERM) },
		"the parent":      func() error { return unix.Kill(os.Getppid(), 0) },
		"slow the group":  func() error { return unix.Setpriority(unix.PRIO_PGRP, 0, 19) },
		"slow the user":   func() error { return unix.Setpriority(unix.PRIO_USER, 0, 19) },
		"the other group": func() error { _, err := unix.Getpgid(0); return err },
	})
}
