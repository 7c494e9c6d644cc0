// Package rlimit changes the resource limits (setrlimit(2)) of the processes of a running node.
package rlimit

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"

	"golang.org/x/sys/unix"

	"berth/internal/host"
	"berth/internal/host/group"
	"berth/internal/spec/vnode"
	"berth/internal/sys/fault"
	"berth/internal/sys/proof"
	"berth/internal/sys/refuse"
	"berth/internal/sys/step"
)

// Kinds returns the step kinds of this package, for reading journals.
func Kinds() step.Kinds {
	return step.Kinds{"cgroup.rlimit": func() step.Step { return &Change{} }}
}

// Change is a step that sets a resource limit (setrlimit(2), soft and hard) of all processes in a running node's group.
// Processes that they start later inherit it. On cgroup v1 the group has the node's helpers too (group.Helpers).
type Change struct {
	proof.Limit
	Path     string            `json:"path"`
	In       []group.Hierarchy `json:"in"`
	From     string            `json:"from"`     // the old value in the spec; "max" if it had none
	Resource int               `json:"resource"` // its number in setrlimit(2)
	Value    uint64            `json:"value"`
	Back     []before          `json:"back"` // the limits that the processes had before
}

// before is the old limit of one process. If its pid is reused in the group, the new process gets the limit: it is a
// process of the same node.
type before struct {
	PID  int    `json:"pid"`
	Soft uint64 `json:"soft"`
	Hard uint64 `json:"hard"`
}

// newChange returns the step for one resource. It refuses a name that is none.
func newChange(name string, value uint64) (*Change, error) {
	i := slices.Index(resources(), name)
	if i < 0 {
		return nil, refuse.Invalidf("%s: no such resource", proof.RLimit.Key(name))
	}
	asked := strconv.FormatUint(value, 10)
	return &Change{Limit: proof.Limit{Key: proof.RLimit.Key(name), Asked: asked, By: "setrlimit"}, Resource: i, Value: value}, nil
}

// Changes returns the steps that give the processes of a running node the resource limits of its new spec. A limit
// that the new spec no longer names stays until the next start: the value without it is not known.
func Changes(old, n *vnode.Node, f host.Facts, path string) ([]step.Step, error) {
	var steps []step.Step
	for _, name := range slices.Sorted(maps.Keys(n.RLimits)) {
		was, had := old.RLimits[name]
		if had && was == n.RLimits[name] {
			continue
		}
		r, err := newChange(name, n.RLimits[name])
		if err != nil {
			return nil, err
		}
		r.Path, r.In, r.From = group.Container(f.Cgroups, path), group.Hierarchies(f.Cgroups), vnode.Max
		if had {
			r.From = strconv.FormatUint(was, 10)
		}
		if !f.SysRes {
			return nil, refuse.Cannotf("stop the node, set it, and start it again",
				"%s: without CAP_SYS_RESOURCE a limit of running processes that is lowered cannot be raised again", r.Key)
		}
		steps = append(steps, r)
	}
	return steps, nil
}

// Kind is "cgroup.rlimit".
func (r *Change) Kind() string { return "cgroup.rlimit" }

// String is "rlimits.nofile 1000 ⇒ 2000: setrlimit of each process".
func (r *Change) String() string {
	return fmt.Sprintf("%s %s ⇒ %s: %s of each process", r.Key, r.From, r.Asked, r.By)
}

// resources returns the names of the limits in the order of their numbers (asm-generic/resource.h). They are the same on
// every architecture of Go except mips and sparc, where Berth does not run.
func resources() []string {
	return []string{
		"cpu", "fsize", "data", "stack", "core", "rss", "nproc", "nofile", "memlock", "as", "locks", "sigpending", "msgqueue",
		"nice", "rtprio", "rttime",
	}
}

// Proved implements proof.Prover.
func (r *Change) Proved() []proof.Limit { return []proof.Limit{r.Limit} }

// each calls f with the limit of each process that is in the node's group now.
func (r *Change) each(f func(pid int, now unix.Rlimit) error) error {
	pids, err := group.Members(r.In, r.Path)
	for _, pid := range pids {
		now, err := r.read(pid)
		if errors.Is(err, unix.ESRCH) {
			continue
		}
		if err != nil {
			return fmt.Errorf("read %s of process %d: %w", r.Key, pid, err)
		}
		if err := f(pid, now); err != nil {
			return err
		}
	}
	return err
}

// set sets the limit of a process. One that has ended is no error.
func (r *Change) set(pid int, to unix.Rlimit) error {
	if err := unix.Prlimit(pid, r.Resource, &to, nil); err != nil && !errors.Is(err, unix.ESRCH) {
		return err
	}
	return nil
}

// Prepare records the limits that the processes have.
func (r *Change) Prepare(context.Context) error {
	r.Back = nil
	return r.each(func(pid int, now unix.Rlimit) error {
		r.Back = append(r.Back, before{PID: pid, Soft: now.Cur, Hard: now.Max})
		return nil
	})
}

// Do sets the limit and repeats until no process is found without it: a process forked before its parent's turn has the old one.
func (r *Change) Do(ctx context.Context) error {
	want := unix.Rlimit{Cur: r.Value, Max: r.Value}
	for done := false; !done; {
		if err := ctx.Err(); err != nil {
			return err
		}
		done = true
		err := r.each(func(pid int, now unix.Rlimit) error {
			if now != want {
				done = false
				if err := r.set(pid, want); err != nil {
					return fmt.Errorf("set %s of process %d to %s: %w", r.Key, pid, r.Asked, err)
				}
			}
			fault.Point("rlimit of a process set")
			return nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// Verify reads the limit back from each process.
func (r *Change) Verify(context.Context) error {
	err := r.each(func(pid int, now unix.Rlimit) error {
		if now.Cur != r.Value || now.Max != r.Value {
			return fmt.Errorf("set %s to %s: process %d has %d, at most %d", r.Key, r.Asked, pid, now.Cur, now.Max)
		}
		return nil
	})
	if err == nil {
		r.ReadBack, r.Holds = r.Asked, true
	}
	return err
}

// Undo restores the old limit of each process. A process started since gets the old limit of the first one recorded.
func (r *Change) Undo(context.Context) error {
	if len(r.Back) == 0 {
		return nil
	}
	return r.each(func(pid int, _ unix.Rlimit) error {
		was := r.Back[max(slices.IndexFunc(r.Back, func(b before) bool { return b.PID == pid }), 0)]
		if err := r.set(pid, unix.Rlimit{Cur: was.Soft, Max: was.Hard}); err != nil {
			return fmt.Errorf("give process %d back its %s: %w", pid, r.Key, err)
		}
		fault.Point("rlimit of a process given back")
		return nil
	})
}

func (r *Change) read(pid int) (unix.Rlimit, error) {
	var now unix.Rlimit
	err := unix.Prlimit(pid, r.Resource, nil, &now)
	return now, err
}

// Drifted returns the step that gives all processes of a running node a resource limit of its spec again, if its process 1, pid,
// has another one.
func Drifted(n *vnode.Node, name string, f host.Facts, path string, pid int) ([]*Change, error) {
	only := &vnode.Node{RLimits: vnode.RLimits{name: n.RLimits[name]}}
	now, err := Read(only, pid)
	if err != nil || now[0].Holds {
		return nil, err
	}
	steps, err := Changes(&vnode.Node{}, only, f, path)
	var all []*Change
	for _, s := range steps {
		c := s.(*Change)
		c.From = now[0].ReadBack
		all = append(all, c)
	}
	return all, err
}

// Read returns the resource limits of a spec, as process 1 of the node has them. pid is that process; 0 if the node
// does not run.
func Read(n *vnode.Node, pid int) ([]proof.Limit, error) {
	var all []proof.Limit
	for _, name := range slices.Sorted(maps.Keys(n.RLimits)) {
		r, err := newChange(name, n.RLimits[name])
		if err != nil {
			return nil, err
		}
		s := r.Limit
		if now, err := r.read(pid); pid != 0 && err == nil {
			s.ReadBack, s.Holds = strconv.FormatUint(now.Max, 10), now.Max == r.Value
		}
		all = append(all, s)
	}
	return all, nil
}
