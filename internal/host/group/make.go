package group

import (
	"context"
	"errors"
	"fmt"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"berth/internal/host"
	"berth/internal/sys/fault"
	"berth/internal/sys/refuse"
	"berth/internal/sys/step"
)

// Group is a step that makes a node's group in every hierarchy, and the parent of all nodes if it is missing. Its Undo
// kills the processes in the group and removes it; the parent goes with the last node.
type Group struct {
	Path string      `json:"path"`           // PARENT/NAME, in every hierarchy
	Root string      `json:"root,omitempty"` // the group inside that the container has as its root; "": Path itself
	In   []Hierarchy `json:"in"`             // Do fills in the inodes; 0: not made, or made by a process that was killed before it recorded the inode
}

// Steps returns the steps that enable the controllers and make the group.
func Steps(h host.Cgroups, path string) ([]step.Step, error) {
	in := Hierarchies(h)
	if len(in) == 0 {
		return nil, refuse.Cannotf("mount one: mount -t cgroup2 none /sys/fs/cgroup", "this host has no cgroup hierarchy mounted")
	}
	group := &Group{Path: path, In: in}
	if root := Container(h, path); root != path {
		group.Root = root
	}
	if e := EnableStep(h, path); e != nil {
		return []step.Step{e, group}, nil
	}
	return []step.Step{group}, nil
}

// Kind is "cgroup.group".
func (g *Group) Kind() string { return "cgroup.group" }

// String is "berth/wn-001 in blkio cpu,cpuacct memory v2".
func (g *Group) String() string {
	names := make([]string, len(g.In))
	for i, h := range g.In {
		names[i] = h.Title()
	}
	return g.Path + " in " + strings.Join(names, " ")
}

// Prepare refuses a group that exists already: it would not be this node's. After Prepare, a group at the path that has no
// inode in the journal is one that Do made.
func (g *Group) Prepare(context.Context) error {
	for _, h := range g.In {
		dir := filepath.Join(h.Mount, g.Path)
		_, _, there, err := Inode(dir)
		if err != nil {
			return err
		}
		if there {
			return &refuse.Error{
				Kind: refuse.Busy, What: "the cgroup " + dir + " exists already and is not this node's",
				Remedy: "end what runs in it and remove it with rmdir",
			}
		}
	}
	return nil
}

// Do makes the group in every hierarchy where it is not there yet.
func (g *Group) Do(context.Context) error {
	for i := range g.In {
		if ino, _, _, err := Inode(filepath.Join(g.In[i].Mount, g.Path)); err == nil && g.In[i].Inode != 0 && ino == g.In[i].Inode {
			continue // done again by the step that made it again: see Return
		}
		if err := g.In[i].Make(g.Path); err != nil {
			return fmt.Errorf("make the cgroup %s: %w", filepath.Join(g.In[i].Mount, g.Path), err)
		}
		fault.Point("cgroup made in " + g.In[i].Title())
		if g.Root == "" {
			continue
		}
		if err := g.In[i].makeInside(g.Path, g.Root); err != nil {
			return fmt.Errorf("make the cgroup %s: %w", filepath.Join(g.In[i].Mount, g.Root), err)
		}
	}
	return nil
}

// makeInside makes a group inside a v2 group, which hands its controllers on.
func (h *Hierarchy) makeInside(path, inside string) error {
	if err := handOnAll(filepath.Join(h.Mount, path), h.Controllers); err != nil {
		return err
	}
	fault.Point("controllers handed on in the cgroup")
	return unix.Mkdir(filepath.Join(h.Mount, inside), 0o755)
}

// tries bounds how often a parent is made again because another node's end removes it at the same moment.
const tries = 100

// Make makes the group in one hierarchy, and its parent if that is missing.
func (h *Hierarchy) Make(path string) error {
	group := filepath.Join(h.Mount, path)
	var err error
	for range tries {
		err = h.tryMake(filepath.Dir(group), group)
		if err == nil || !Gone(err) {
			break
		}
	}
	if err != nil {
		return err
	}
	ino, _, there, err := Inode(group)
	if err == nil && !there {
		return errors.New("it vanished while it was made")
	}
	h.Inode = ino
	return err
}

func (h *Hierarchy) tryMake(parent, group string) error {
	if err := unix.Mkdir(parent, 0o755); err != nil && !errors.Is(err, unix.EEXIST) {
		return err
	}
	if h.V2 {
		if err := handOnAll(parent, h.Controllers); err != nil {
			return err
		}
	}
	if h.Has("cpuset") {
		if err := fromParent(parent); err != nil {
			return err
		}
	}
	fault.Point("cgroup's parent made")
	if err := unix.Mkdir(group, 0o755); err != nil {
		return err
	}
	switch {
	case h.Has("cpuset"):
		return fromParent(group)
	case h.Has("memory"):
		return useHierarchy(group)
	}
	return nil
}

// fromParent fills an empty v1 cpuset with its parent's values: no process can enter an empty one.
func fromParent(dir string) error {
	for _, name := range []string{"cpuset.cpus", "cpuset.mems"} {
		w := Write{File: filepath.Join(dir, name), Value: AsParent}
		if now, err := w.Read(w.File); err != nil {
			return err
		} else if now != "" {
			continue
		}
		if err := w.Do(); err != nil {
			return err
		}
	}
	return nil
}

// useHierarchy makes a v1 memory limit hold for the groups inside too; kernels since 5.11 always do so.
func useHierarchy(dir string) error {
	file := filepath.Join(dir, "memory.use_hierarchy")
	if now, err := ReadFile(file); err != nil || now != "0" {
		return nil //nolint:nilerr // a kernel without the file has nothing to switch
	}
	return WriteFile(file, "1")
}

// Verify checks that every group exists and is the one that Do made.
func (g *Group) Verify(context.Context) error {
	for _, h := range g.In {
		dir := filepath.Join(h.Mount, g.Path)
		ino, _, _, err := Inode(dir)
		if err != nil {
			return err
		}
		if h.Inode == 0 || ino != h.Inode {
			return fmt.Errorf("the cgroup %s is not the one that was made: inode %d, made %d", dir, ino, h.Inode)
		}
		if g.Root == "" {
			continue
		}
		if _, _, there, err := Inode(filepath.Join(h.Mount, g.Root)); err != nil || !there {
			return errors.Join(err, fmt.Errorf("the cgroup %s is not there", filepath.Join(h.Mount, g.Root)))
		}
	}
	return nil
}

// Undo kills the processes left in the group and removes it with the groups inside it, then the parent if no other node is
// in it. A folder with another inode is another's and stays.
func (g *Group) Undo(ctx context.Context) error {
	ctx, cancel := patience(ctx)
	defer cancel()
	for {
		left, err := g.remove()
		if err != nil {
			return err
		}
		if len(left) == 0 {
			break
		}
		pids, err := members(left)
		if err != nil {
			return err
		}
		if len(pids) > 0 {
			err = kill(ctx, left)
		} else { // the last process is still exiting
			time.Sleep(time.Millisecond)
			err = ctx.Err()
		}
		if err != nil {
			return fmt.Errorf("remove the cgroup %s: %w", left[0].dir, err)
		}
	}
	if parent := path.Dir(g.Path); parent != "." {
		fault.Point("cgroup removed")
		for _, h := range g.In {
			// Rmdir fails if another node is in the parent, or if another node's end has removed the parent.
			dir := filepath.Join(h.Mount, parent)
			if unix.Rmdir(dir) != nil && h.V2 {
				for _, name := range protections() {
					_ = sumIn(dir, name) // after an error the parent protects too much until the next sum
				}
			}
		}
	}
	return nil
}

// remove removes the group where nothing runs in it, and returns the places where it is busy.
func (g *Group) remove() ([]place, error) {
	var left []place
	for _, h := range g.In {
		p := h.at(g.Path)
		ino, _, there, err := Inode(p.dir)
		if err != nil {
			return nil, err
		}
		if !there || h.Inode != 0 && ino != h.Inode {
			continue
		}
		switch err := RemoveTree(p.dir); {
		case errors.Is(err, unix.EBUSY):
			left = append(left, p)
		case err != nil:
			return nil, fmt.Errorf("remove the cgroup %s: %w", p.dir, err)
		default:
			fault.Point("cgroup removed from " + h.Title())
		}
	}
	return left, nil
}

// RemoveTree removes a group and the groups inside it. EBUSY means that a process is left. What is no folder is a file that the
// kernel has in the group above, as tasks of cgroup v1: no group was made there, and there is none to remove.
func RemoveTree(dir string) error {
	err := unix.Rmdir(dir)
	if err == nil || Gone(err) || errors.Is(err, unix.ENOTDIR) {
		return nil
	}
	inner, listErr := groupsIn(dir)
	if listErr != nil || len(inner) == 0 {
		return err
	}
	for _, d := range slices.Backward(inner) {
		if err := unix.Rmdir(d); err != nil && !Gone(err) {
			return err
		}
	}
	if err := unix.Rmdir(dir); !Gone(err) {
		return err
	}
	return nil
}
