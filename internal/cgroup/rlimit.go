package cgroup

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"berth/internal/host"
	"berth/internal/refuse"
	"berth/internal/step"
	"berth/internal/vnode"
)

// RLimit is a step that sets a resource limit (setrlimit(2), soft and hard) of all processes in a running node's group.
// Processes that they start later inherit it.
type RLimit struct {
	Key      string      `json:"key"` // "rlimits.nofile"
	Path     string      `json:"path"`
	In       []Hierarchy `json:"in"`
	From     string      `json:"from"` // the old value in the spec; "max" if it had none
	Asked    string      `json:"asked"`
	Value    uint64      `json:"value"`
	Back     []rlimitWas `json:"back"` // what the processes had before
	ReadBack string      `json:"read_back,omitempty"`
}

// rlimitWas is the old limit of one process. If its pid is reused in the group, the new process gets the limit: it is a
// process of the same node.
type rlimitWas struct {
	PID  int    `json:"pid"`
	Soft uint64 `json:"soft"`
	Hard uint64 `json:"hard"`
}

// RLimitMechanism is the mechanism that enforces resource limits.
const RLimitMechanism = "setrlimit"

// RLimitChanges returns the steps that give the processes of a running node the resource limits of its new spec. A limit
// that the new spec no longer names stays until the next start: the value without it is not known.
func RLimitChanges(old, n *vnode.Node, f host.Facts, path string) ([]step.Step, error) {
	var steps []step.Step
	for _, name := range slices.Sorted(maps.Keys(n.RLimits)) {
		was, had := old.RLimits[name]
		if had && was == n.RLimits[name] {
			continue
		}
		r := &RLimit{
			Key: "rlimits." + name, Path: path, In: hierarchies(f.Cgroups), From: vnode.Max,
			Asked: strconv.FormatUint(n.RLimits[name], 10), Value: n.RLimits[name],
		}
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
func (r *RLimit) Kind() string { return "cgroup.rlimit" }

// String is "rlimits.nofile 1000 ⇒ 2000: setrlimit of each process".
func (r *RLimit) String() string {
	return fmt.Sprintf("%s %s ⇒ %s: %s of each process", r.Key, r.From, r.Asked, RLimitMechanism)
}

// resources returns the numbers of the limits (asm-generic/resource.h). They are the same on every architecture of Go
// except mips and sparc, where Berth does not run.
func resources() map[string]int {
	return map[string]int{
		"cpu": 0, "fsize": 1, "data": 2, "stack": 3, "core": 4, "rss": 5, "nproc": 6, "nofile": 7, "memlock": 8, "as": 9,
		"locks": 10, "sigpending": 11, "msgqueue": 12, "nice": 13, "rtprio": 14, "rttime": 15,
	}
}

func (r *RLimit) resource() int { return resources()[strings.TrimPrefix(r.Key, "rlimits.")] }

// members returns the processes in the node's group now.
func (r *RLimit) members() ([]int, error) {
	in := make([]place, len(r.In))
	for i, h := range r.In {
		in[i] = place{Hierarchy: h, dir: h.Mount + "/" + r.Path}
	}
	return members(in)
}

// Prepare records the limits that the processes have.
func (r *RLimit) Prepare(context.Context) error {
	pids, err := r.members()
	if err != nil {
		return err
	}
	r.Back = nil
	for _, pid := range pids {
		now, err := r.read(pid)
		if errors.Is(err, unix.ESRCH) {
			continue
		}
		if err != nil {
			return fmt.Errorf("read %s of process %d: %w", r.Key, pid, err)
		}
		r.Back = append(r.Back, rlimitWas{PID: pid, Soft: now.Cur, Hard: now.Max})
	}
	return nil
}

// Do sets the limit and repeats until no process is found without it: a process forked before its parent's turn has the old one.
func (r *RLimit) Do(ctx context.Context) error {
	want := unix.Rlimit{Cur: r.Value, Max: r.Value}
	for done := false; !done; {
		if err := ctx.Err(); err != nil {
			return err
		}
		pids, err := r.members()
		if err != nil {
			return err
		}
		done = true
		for _, pid := range pids {
			now, err := r.read(pid)
			if err == nil && now != want {
				done = false
				err = unix.Prlimit(pid, r.resource(), &want, nil)
			}
			if err != nil && !errors.Is(err, unix.ESRCH) {
				return fmt.Errorf("set %s of process %d to %s: %w", r.Key, pid, r.Asked, err)
			}
			step.Fault("rlimit of a process set")
		}
	}
	return nil
}

// Verify reads the limit back from each process.
func (r *RLimit) Verify(context.Context) error {
	pids, err := r.members()
	if err != nil {
		return err
	}
	for _, pid := range pids {
		now, err := r.read(pid)
		if errors.Is(err, unix.ESRCH) {
			continue
		}
		if err != nil {
			return fmt.Errorf("read %s of process %d: %w", r.Key, pid, err)
		}
		if now.Cur != r.Value || now.Max != r.Value {
			return fmt.Errorf("set %s to %s: process %d has %d, at most %d", r.Key, r.Asked, pid, now.Cur, now.Max)
		}
	}
	r.ReadBack = r.Asked
	return nil
}

// Undo restores the old limit of each process. A process started since gets the old limit of the first one recorded.
func (r *RLimit) Undo(context.Context) error {
	pids, err := r.members()
	if err != nil || len(r.Back) == 0 {
		return err
	}
	for _, pid := range pids {
		was := r.Back[0]
		for _, b := range r.Back {
			if b.PID == pid {
				was = b
			}
		}
		err := unix.Prlimit(pid, r.resource(), &unix.Rlimit{Cur: was.Soft, Max: was.Hard}, nil)
		if err != nil && !errors.Is(err, unix.ESRCH) {
			return fmt.Errorf("give process %d back its %s: %w", pid, r.Key, err)
		}
		step.Fault("rlimit of a process given back")
	}
	return nil
}

func (r *RLimit) read(pid int) (unix.Rlimit, error) {
	var now unix.Rlimit
	err := unix.Prlimit(pid, r.resource(), nil, &now)
	return now, err
}

// ReadRLimits returns the resource limits of a spec, as process 1 of the node has them. pid is that process; 0 if the node
// does not run.
func ReadRLimits(n *vnode.Node, pid int) []Shown {
	var all []Shown
	for _, name := range slices.Sorted(maps.Keys(n.RLimits)) {
		r := RLimit{Key: "rlimits." + name, Value: n.RLimits[name]}
		s := Shown{Key: r.Key, Asked: strconv.FormatUint(r.Value, 10), HonouredBy: RLimitMechanism}
		if now, err := r.read(pid); pid != 0 && err == nil {
			s.ReadBack, s.Holds = strconv.FormatUint(now.Max, 10), now.Max == r.Value
		}
		all = append(all, s)
	}
	return all
}
