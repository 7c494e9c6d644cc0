// Package sysctl sets kernel parameters of a node's own network and IPC namespaces, from outside, before its command runs.
//
// The runtimes could set them too. But they write as the node's root, which kernels before 5.19 do not allow for the IPC
// namespace's parameters, and they do not read them back.
package sysctl

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"berth/internal/spec/vnode"
	"berth/internal/sys/refuse"
	"berth/internal/sys/step"
	"berth/internal/sys/thread"
)

// Kinds returns the step kinds of this package, for reading journals.
func Kinds() step.Kinds {
	return step.Kinds{"sysctl.set": func() step.Step { return &Set{} }}
}

// Set sets kernel parameters of a node that is created and does not run its command yet.
type Set struct {
	PIDFile string            `json:"pid_file"` // of the node's first process
	Values  map[string]string `json:"values"`
}

// Steps returns the steps for a node; none if it asks for no parameters.
//
// The runtimes let groups 0 to 65535 send echo requests (ping). The kernel compares the host's ids, of which further groups of a
// node may be any: so all may.
func Steps(n *vnode.Node, pidFile string) []step.Step {
	values := maps.Clone(n.Sysctls)
	const ping = "net.ipv4.ping_group_range"
	if _, own := values[ping]; !own && len(n.Users) > 0 {
		if values == nil {
			values = map[string]string{}
		}
		values[ping] = fmt.Sprint("0 ", vnode.LastID)
	}
	if len(values) == 0 {
		return nil
	}
	return []step.Step{&Set{PIDFile: pidFile, Values: values}}
}

// Kind implements step.Step.
func (s *Set) Kind() string { return "sysctl.set" }

func (s *Set) String() string {
	var all []string
	for _, name := range slices.Sorted(maps.Keys(s.Values)) {
		all = append(all, name+"="+s.Values[name])
	}
	return strings.Join(all, ", ")
}

// Do implements step.Step.
func (s *Set) Do(context.Context) error {
	return s.each(func(name, file string) error {
		err := write(file, s.Values[name])
		switch {
		case errors.Is(err, fs.ErrNotExist):
			return refuse.Cannotf("leave it out", "sysctl %s: this kernel has no such parameter of a node's own", name)
		case errors.Is(err, unix.EINVAL), errors.Is(err, unix.ERANGE), errors.Is(err, unix.EDOM):
			return refuse.Invalidf("sysctl %s: the kernel refuses the value %q", name, s.Values[name])
		case errors.Is(err, fs.ErrPermission), errors.Is(err, unix.EROFS):
			return refuse.Cannotf("leave it out", "sysctl %s: this kernel lets nobody change it: %w", name, err)
		}
		return err
	})
}

// write writes a parameter. From kernel 5.19 on only the root of the IPC namespace's user namespace may write some of them:
// the calling thread then writes as the file's owner.
func write(file, value string) error {
	err := os.WriteFile(file, []byte(value), 0)
	var st unix.Stat_t
	if !errors.Is(err, fs.ErrPermission) || unix.Stat(file, &st) != nil || st.Uid == 0 {
		return err
	}
	if asErr := become(st.Uid); asErr != nil {
		return errors.Join(err, asErr)
	}
	err = os.WriteFile(file, []byte(value), 0)
	return errors.Join(err, become(0))
}

// become changes the effective user id of the calling thread alone.
func become(uid uint32) error {
	const same = ^uintptr(0)
	if _, _, errno := unix.RawSyscall(unix.SYS_SETRESUID, same, uintptr(uid), same); errno != 0 {
		return fmt.Errorf("become user %d: %w", uid, errno)
	}
	return nil
}

// Verify implements step.Step.
func (s *Set) Verify(context.Context) error {
	return s.each(func(name, file string) error {
		text, err := os.ReadFile(file)
		if err != nil {
			return fmt.Errorf("read back sysctl %s: %w", name, err)
		}
		// The kernel separates several numbers by tabs.
		if has, want := strings.Fields(string(text)), strings.Fields(s.Values[name]); !slices.Equal(has, want) {
			return refuse.Cannotf("ask for what it has", "sysctl %s: asked for %s, the kernel has %s", name, strings.Join(want, " "), strings.Join(has, " "))
		}
		return nil
	})
}

// Drifted returns those of the parameters that another program has changed since, each with what the kernel has. The node itself cannot
// change them: its /proc/sys may only be read.
func (s *Set) Drifted() (has map[string]string, err error) {
	has = map[string]string{}
	err = s.each(func(name, file string) error {
		text, err := os.ReadFile(file)
		if now := strings.Join(strings.Fields(string(text)), " "); err == nil && now != strings.Join(strings.Fields(s.Values[name]), " ") {
			has[name] = now
		}
		return err
	})
	return has, err
}

// Undo implements step.Step: the parameters end with the node's namespaces.
func (s *Set) Undo(context.Context) error { return nil }

// each calls f for each parameter, in the node's namespaces, with the parameter's file.
func (s *Set) each(f func(name, file string) error) error {
	text, err := os.ReadFile(s.PIDFile)
	if err != nil {
		return fmt.Errorf("find the node's namespaces: %w", err)
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil {
		return fmt.Errorf("find the node's namespaces: read pid file %s: %w", s.PIDFile, err)
	}
	return thread.Own(func() error {
		for kind, flag := range map[string]int{"net": unix.CLONE_NEWNET, "ipc": unix.CLONE_NEWIPC} {
			if err := enter(pid, kind, flag); err != nil {
				return fmt.Errorf("enter the node's %s namespace: %w", kind, err)
			}
		}
		for _, name := range slices.Sorted(maps.Keys(s.Values)) {
			file := filepath.Join("/proc/sys", filepath.FromSlash(strings.ReplaceAll(name, ".", "/")))
			if err := f(name, file); err != nil {
				return err
			}
		}
		return nil
	})
}

// enter takes the calling thread into a namespace of a process. It refuses this process's own: that is the host's.
func enter(pid int, kind string, flag int) error {
	ns, err := os.Open(fmt.Sprintf("/proc/%d/ns/%s", pid, kind))
	if err != nil {
		return err
	}
	defer ns.Close()
	theirs, err := ns.Stat()
	if err != nil {
		return err
	}
	ours, err := os.Stat("/proc/self/ns/" + kind)
	if err != nil {
		return err
	}
	if os.SameFile(ours, theirs) {
		return errors.New("it is the host's own")
	}
	return unix.Setns(int(ns.Fd()), flag)
}
