package group

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"berth/internal/sys/proc"
	"berth/internal/sys/refuse"
)

// Return is a step that brings processes back that another program has moved out of a node's group, and makes the group
// again where it is gone. It is done without a journal: the next command that looks finds what is left to do.
type Return struct {
	Group *Group
	To    string // the path of the container's group
	Away  []Away
	Gone  []Hierarchy // where the group is gone, or another one has its path
}

// Away is a process that is not where its limits are.
type Away struct {
	PID int
	In  Hierarchy
	At  string // its group, relative to the mount: "" is the top
}

// Return returns the step that brings those of these processes back that are not in the group; nil if all are. The group is
// known by its inode, not by its path alone. Hierarchies that hold no limits are left out.
func (g *Group) Return(pids []int, to string) (*Return, error) {
	r := &Return{Group: g, To: to}
	for _, h := range g.In {
		if !h.limits() {
			continue
		}
		ino, _, there, err := Inode(filepath.Join(h.Mount, g.Path))
		if err != nil {
			return nil, err
		}
		var away []int
		if !there || h.Inode != 0 && ino != h.Inode {
			r.Gone, away = append(r.Gone, h), pids
		} else {
			away, err = h.missing(g.Path, pids)
		}
		if err == nil && there && len(away) > 0 && len(r.Gone) == 0 { // one that was forked or ended meanwhile is not when looked at again
			away, err = h.missing(g.Path, away)
		}
		if err != nil {
			return nil, err
		}
		for _, pid := range away {
			if at, err := h.GroupOf(pid); err == nil {
				r.Away = append(r.Away, Away{PID: pid, In: h, At: at})
			}
		}
	}
	if len(r.Away)+len(r.Gone) == 0 {
		return nil, nil //nolint:nilnil // nothing to bring back
	}
	return r, nil
}

// limits reports whether a hierarchy holds limits of nodes.
func (h Hierarchy) limits() bool {
	return slices.ContainsFunc(h.Controllers, func(c string) bool { return c != "cpuacct" && !strings.HasPrefix(c, "name=") })
}

// missing returns those of the processes that run and have a thread outside of a group and the groups inside it.
func (h Hierarchy) missing(path string, pids []int) (away []int, err error) {
	has, err := listed([]place{h.at(path)}, h.taskFile())
	if err != nil {
		return nil, err
	}
	for _, pid := range pids {
		id, err := proc.Of(pid)
		if err != nil || id.Ending() {
			continue
		}
		if slices.ContainsFunc(h.Tasks(pid), func(t int) bool { return !has[t] }) {
			away = append(away, pid)
		}
	}
	return away, nil
}

// Kind is "cgroup.return".
func (r *Return) Kind() string { return "cgroup.return" }

// String is `process 12 "sleep" from / of cpu memory into berth/wn-001`.
func (r *Return) String() string {
	var parts []string
	if len(r.Gone) > 0 {
		parts = append(parts, r.Group.Path+" again in "+titles(r.Gone))
	}
	return strings.Join(append(parts, r.Whom()...), ", ") + " into " + r.To
}

// Whom names each process that is away, and the group in which it is.
func (r *Return) Whom() (all []string) {
	var pids []int
	for _, a := range r.Away {
		if !slices.Contains(pids, a.PID) {
			pids = append(pids, a.PID)
		}
	}
	for _, pid := range pids {
		var in []Hierarchy
		at := ""
		for _, a := range r.Away {
			if a.PID == pid {
				in, at = append(in, a.In), a.At
			}
		}
		all = append(all, fmt.Sprintf("process %d %q from /%s of %s", pid, proc.Name(pid), at, titles(in)))
	}
	return all
}

// Why says why the limits of the group do not hold.
func (r *Return) Why() string {
	if len(r.Gone) > 0 {
		return "the node's group is gone from " + titles(r.Gone) + ": somebody else removed it"
	}
	return "it does not hold all of the node, somebody else moved " + strings.Join(r.Whom(), ", ")
}

func titles(in []Hierarchy) string {
	names := make([]string, len(in))
	for i, h := range in {
		names[i] = h.Title()
	}
	return strings.Join(names, " ")
}

// Anew reports whether the group, or the container's own in it, is to be made anew: then nothing is left of what it had.
func (r *Return) Anew() bool {
	return len(r.Gone) > 0 || slices.ContainsFunc(r.Away, func(a Away) bool {
		_, _, there, err := Inode(filepath.Join(a.In.Mount, r.To))
		return err == nil && !there
	})
}

// Remake makes the group again where it is gone. The caller notes the new inodes in the journal that has the group, before Do.
func (r *Return) Remake() error {
	for _, h := range r.Gone {
		i := slices.IndexFunc(r.Group.In, func(o Hierarchy) bool { return o.Mount == h.Mount })
		if err := r.Group.makeAgain(i, r.pids()); err != nil {
			return err
		}
	}
	return nil
}

func (r *Return) pids() (all []int) {
	for _, a := range r.Away {
		all = append(all, a.PID)
	}
	return all
}

// Do moves the processes back. The container's own group may be gone from the node's, which is there. Any other group is not made again: its
// owner has ended it meanwhile.
func (r *Return) Do(context.Context) error {
	for _, a := range r.Away {
		if r.To != r.Group.Path {
			if err := unix.Mkdir(filepath.Join(a.In.Mount, r.To), 0o755); err != nil && !errors.Is(err, unix.EEXIST) {
				return fmt.Errorf("make the cgroup %s again: %w", filepath.Join(a.In.Mount, r.To), err)
			}
		}
		if err := a.In.Move(a.PID, r.To); err != nil {
			return fmt.Errorf("move process %d back into the node's group: %w", a.PID, err)
		}
	}
	return nil
}

// makeAgain makes the group in one hierarchy, in the place of an empty one that another program has made there. One that has only these
// processes of the node is taken as it is.
func (g *Group) makeAgain(i int, pids []int) error {
	h := &g.In[i]
	dir := filepath.Join(h.Mount, g.Path)
	err := RemoveTree(dir)
	if errors.Is(err, unix.EBUSY) {
		inside, listErr := Members([]Hierarchy{*h}, g.Path)
		if listErr == nil && !slices.ContainsFunc(inside, func(pid int) bool { return !slices.Contains(pids, pid) }) {
			return g.take(h, inside)
		}
	}
	if err != nil {
		return refuse.Busyf("the cgroup %s is not the node's, which is gone: end what runs in it, remove it with rmdir, and repeat: %w", dir, err)
	}
	err = h.Make(g.Path)
	if err == nil && g.Root != "" {
		err = h.makeInside(g.Path, g.Root)
	}
	if err != nil {
		return fmt.Errorf("make the cgroup %s again: %w", dir, err)
	}
	return nil
}

// take takes over a group that another program has made at the path of the node's, with these processes of the node in it.
func (g *Group) take(h *Hierarchy, inside []int) error {
	dir := filepath.Join(h.Mount, g.Path)
	ino, _, _, err := Inode(dir)
	if h.Inode = ino; err != nil || g.Root == "" {
		return err
	}
	if err := unix.Mkdir(filepath.Join(h.Mount, g.Root), 0o755); err != nil && !errors.Is(err, unix.EEXIST) {
		return fmt.Errorf("make the cgroup %s again: %w", dir, err)
	}
	for _, pid := range inside { // none may be in the group itself when it hands controllers on
		if err := h.Move(pid, g.Root); err != nil {
			return err
		}
	}
	return handOnAll(dir, h.Controllers)
}

// Verify checks that the processes are back.
func (r *Return) Verify(context.Context) error {
	left, err := r.Group.Return(r.pids(), r.To)
	if err == nil && left != nil {
		err = errors.New(left.Why())
	}
	return err
}

// Undo does nothing: the processes are where they belong.
func (r *Return) Undo(context.Context) error { return nil }
