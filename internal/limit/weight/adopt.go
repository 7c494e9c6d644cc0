package weight

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"berth/internal/host"
	"berth/internal/host/group"
	"berth/internal/spec/vnode"
	"berth/internal/sys/fault"
	"berth/internal/sys/proc"
	"berth/internal/sys/refuse"
	"berth/internal/sys/step"
)

// Adopt is a step that makes a group for processes of the host and moves a process and its descendants into it, in the
// hierarchies that share CPU time and disks. Its Undo moves every process that is then in the group back to where the
// first one came from. It never kills.
type Adopt struct {
	Path  string    `json:"path"`
	PID   int       `json:"pid"`
	Start uint64    `json:"start"` // clock ticks since boot; together with the pid it identifies the process
	In    []Adopter `json:"in"`    // Do fills in the inodes

	// Undo fills in where it has moved processes that could not return to the group that they came from, in words for a person.
	Elsewhere []string `json:"-"`
}

// Adopter is one hierarchy of an Adopt.
type Adopter struct {
	group.Hierarchy
	From string `json:"from"` // the group in which the process was, relative to the mount
}

// AdoptSteps returns the steps that make a group at the top of the trees, move a process there, and give the group a
// standing among its siblings. low is how much of its memory is protected. Only memory charged after the move counts:
// the kernel leaves earlier charges with the old group.
func AdoptSteps(s vnode.Standing, h host.Cgroups, path string, pid int, start uint64, low vnode.Bytes) ([]step.Step, error) {
	from, err := GroupsOf(h, pid)
	if err != nil {
		return nil, err
	}
	a := &Adopt{Path: path, PID: pid, Start: start}
	for i, hh := range sharing(h) {
		a.In = append(a.In, Adopter{Hierarchy: hh, From: from[i]})
	}
	if len(a.In) == 0 {
		return nil, refuse.Cannotf("", "this host has no cgroup controller that shares CPU time or disks")
	}
	var steps []step.Step
	if e := group.EnableStep(h, path); e != nil {
		steps = append(steps, e)
	}
	return append(steps, a, &Class{Name: path, Values: standingWith(s, h, path, low)}), nil
}

// sharing lists the hierarchies that share CPU time and disks.
func sharing(h host.Cgroups) []group.Hierarchy {
	return slices.DeleteFunc(group.Hierarchies(h), func(hh group.Hierarchy) bool {
		return !slices.ContainsFunc([]string{"cpu", "blkio", "io"}, func(c string) bool { return slices.Contains(hh.Controllers, c) })
	})
}

// GroupsOf returns the groups of a process, relative to the mounts, in the hierarchies that share CPU time and disks.
func GroupsOf(h host.Cgroups, pid int) ([]string, error) {
	var all []string
	for _, hh := range sharing(h) {
		at, err := hh.GroupOf(pid)
		if err != nil {
			return nil, err
		}
		all = append(all, at)
	}
	return all, nil
}

// OwnGroup returns the group that holds the process, its descendants and no other process, the same in every hierarchy that
// shares CPU time or disks. ok is false if there is no such group.
func OwnGroup(h host.Cgroups, pid int) (path string, ok bool, err error) {
	family := proc.Family(pid)
	for i, hh := range sharing(h) {
		at, err := hh.GroupOf(pid)
		if err != nil {
			return "", false, err
		}
		if at == "" || i > 0 && at != path {
			return "", false, nil
		}
		path = at
		others, err := group.Members([]group.Hierarchy{hh}, at)
		if err != nil {
			return "", false, err
		}
		if slices.ContainsFunc(others, func(p int) bool { return !slices.Contains(family, p) }) {
			return "", false, nil
		}
	}
	return path, path != "", nil
}

// Kind is "cgroup.adopt".
func (a *Adopt) Kind() string { return "cgroup.adopt" }

// String is "process 1234 and those that it started into berth.pid.1234".
func (a *Adopt) String() string {
	return fmt.Sprintf("process %d and those that it started into %s", a.PID, a.Path)
}

// Prepare refuses a group that exists already: it would not be this process's.
func (a *Adopt) Prepare(context.Context) error {
	for _, in := range a.In {
		dir := filepath.Join(in.Mount, a.Path)
		if _, _, there, err := group.Inode(dir); err != nil || there {
			return errors.Join(err, refuse.Busyf("the cgroup %s exists already", dir))
		}
	}
	return nil
}

// Do makes the group and moves the processes. It repeats until none is left behind, because they may fork meanwhile.
func (a *Adopt) Do(ctx context.Context) error {
	for i := range a.In {
		in := &a.In[i]
		if there, err := in.ours(a.Path, a.PID); err != nil || there {
			if err != nil {
				return err
			}
			continue
		}
		if err := in.Hierarchy.Make(a.Path); err != nil {
			return fmt.Errorf("make the cgroup %s: %w", filepath.Join(in.Mount, a.Path), err)
		}
		fault.Point("cgroup made in " + in.Title())
	}
	for _, in := range a.In {
		home, err := in.GroupOf(a.PID) // where it is: in.From, or where another program moved it
		if err != nil {
			return err
		}
		for moved := true; moved && ctx.Err() == nil; {
			moved = false
			for _, pid := range group.Together(a.PID) {
				some, err := in.move(pid, a.Path, func(task int) bool {
					at, err := in.GroupOf(task)
					return err == nil && at != a.Path && (at == in.From || at == home) // else it has ended, is in a group of its own, or was moved already
				})
				if err != nil {
					return err
				}
				if some {
					moved = true
					fault.Point("process moved")
				}
			}
		}
	}
	return ctx.Err()
}

// ours reports whether the group is there already and the one that was made, as when the step is done again. An empty one that
// another program has made at the path is removed; one that has only the process and its descendants is taken.
func (in *Adopter) ours(path string, pid int) (bool, error) {
	dir := filepath.Join(in.Mount, path)
	ino, _, there, err := group.Inode(dir)
	if err != nil || !there || ino == in.Inode {
		return there, err
	}
	if unix.Rmdir(dir) == nil {
		return false, nil
	}
	family := proc.Family(pid)
	members, err := group.Members([]group.Hierarchy{in.Hierarchy}, path)
	if err == nil && slices.ContainsFunc(members, func(p int) bool { return !slices.Contains(family, p) }) {
		err = refuse.Busyf("the cgroup %s is not the one that was made for process %d, which is gone: end what runs in it, and repeat", dir, pid)
	}
	in.Inode = ino
	return true, err
}

// Lost says why the process is not where its weights are; "" if it is.
func (a *Adopt) Lost() string {
	for _, in := range a.In {
		ino, _, there, err := group.Inode(filepath.Join(in.Mount, a.Path))
		if err != nil {
			return err.Error()
		}
		if !there || in.Inode != 0 && ino != in.Inode {
			return fmt.Sprintf("the cgroup %s is gone from %s: somebody else removed it", a.Path, in.Title())
		}
		members, err := group.Members([]group.Hierarchy{in.Hierarchy}, a.Path)
		if err == nil && !slices.Contains(members, a.PID) {
			at, _ := in.GroupOf(a.PID)
			return fmt.Sprintf("process %d is in /%s of %s: somebody else moved it", a.PID, at, in.Title())
		}
		for _, pid := range group.Together(a.PID) { // processes that it started and that are in the group that it came from: see Do
			at, err := in.GroupOf(pid)
			if err != nil || at != in.From || at == a.Path {
				continue
			}
			if id, err := proc.Of(pid); err == nil && !id.Ending() {
				return fmt.Sprintf("process %d is in /%s of %s: somebody else moved it", pid, at, in.Title())
			}
		}
	}
	return ""
}

// Verify checks that the process is in the group.
func (a *Adopt) Verify(context.Context) error {
	for _, in := range a.In {
		at, err := in.GroupOf(a.PID)
		if err != nil {
			return err
		}
		if at != a.Path {
			return fmt.Errorf("move process %d: it is in %s", a.PID, at)
		}
	}
	return nil
}

// Undo moves all processes back and removes the group.
func (a *Adopt) Undo(ctx context.Context) error {
	a.Elsewhere = nil
	for _, in := range a.In {
		dir := filepath.Join(in.Mount, a.Path)
		ino, _, there, err := group.Inode(dir)
		if err != nil {
			return err
		}
		if !there || in.Inode != 0 && ino != in.Inode {
			continue
		}
		to := in.home()
		moved, err := in.empty(ctx, a.Path, to)
		if err != nil {
			return err
		}
		if moved && to != in.From {
			a.Elsewhere = append(a.Elsewhere, fmt.Sprintf("the cgroup /%s of %s, from which they came, is gone: they are in /%s", in.From, in.Title(), to))
		}
		if err := group.RemoveTree(dir); err != nil {
			return fmt.Errorf("remove the cgroup %s: %w", dir, err)
		}
		fault.Point("cgroup removed from " + in.Title())
	}
	return nil
}

// home is the group to which processes return: the one that they came from, else the nearest above it that is still there and takes processes: on
// v2 none does that shares controllers among the groups inside it (Documentation/admin-guide/cgroup-v2.rst, No Internal Process Constraint), but
// for the root.
func (in Adopter) home() string {
	for to := in.From; to != "" && to != "."; to = filepath.Dir(to) {
		shared, err := os.ReadFile(filepath.Join(in.Mount, to, "cgroup.subtree_control"))
		if _, statErr := os.Stat(filepath.Join(in.Mount, to)); statErr == nil && (err != nil || len(strings.TrimSpace(string(shared))) == 0) {
			return to
		}
	}
	return ""
}

// move moves those tasks of a process to a group that are there. All of them take one write: for each, the kernel holds up all forks and exits.
func (in Adopter) move(pid int, to string, there func(task int) bool) (some bool, err error) {
	all := in.Tasks(pid)
	tasks := slices.DeleteFunc(slices.Clone(all), func(task int) bool { return !there(task) })
	if len(tasks) > 0 && len(tasks) == len(all) {
		return true, in.Move(pid, to)
	}
	for _, task := range tasks {
		if err := in.MoveTask(task, to); err != nil {
			return some, err
		}
		some = true
	}
	return some, nil
}

// empty moves all processes of a group to another one. On v1 threads that a process itself has put into groups of their own stay there.
func (in Adopter) empty(ctx context.Context, path, to string) (moved bool, err error) {
	for round := 0; ctx.Err() == nil; round++ {
		if round > 0 { // a process that is exiting is still listed
			time.Sleep(time.Millisecond)
		}
		tasks, err := in.TasksIn(path)
		if err != nil || len(tasks) == 0 {
			return moved, err
		}
		pids, err := group.Members([]group.Hierarchy{in.Hierarchy}, path)
		if err != nil {
			return moved, err
		}
		for _, pid := range pids {
			some, err := in.move(pid, to, func(task int) bool { return slices.Contains(tasks, task) })
			if err != nil {
				return moved, fmt.Errorf("move process %d back: %w", pid, err)
			}
			moved = moved || some
			fault.Point("process moved back")
		}
	}
	return moved, ctx.Err()
}
