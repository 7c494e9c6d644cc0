package protect

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"berth/internal/host"
	"berth/internal/host/group"
	"berth/internal/host/systemd"
	"berth/internal/sys/proof"
	"berth/internal/sys/step"
)

// valuesOf returns the values of those properties of a unit that were set: as systemd says, in the files that systemd reads when it
// starts next, and, while the unit runs, as the kernel says. systemd does not look whether another program has written to its groups.
func (v *Services) valuesOf(s *systemd.Set, u systemd.Unit, cg host.Cgroups) []proof.Limit {
	dir := v.control
	if u.Transient {
		dir = v.transient
	}
	all := make([]proof.Limit, len(s.Properties))
	for i, p := range s.Properties {
		l := proof.Limit{Key: p.Name, Asked: p.Value, By: "systemd", ReadBack: u.Properties[p.Name]}
		if l.Holds = p.Holds(l.ReadBack); l.Holds {
			why, err := s.Kept(dir, p)
			if err != nil {
				why = err.Error()
			}
			if why == "" {
				why = inKernel(p, cg, strings.TrimPrefix(u.ControlGroup, "/"))
			}
			l.Holds, l.Why = why == "", why
		}
		all[i] = l
	}
	return all
}

// inKernel says where a group's value differs from the one that systemd writes for a property; "" if it does not. It knows
// cgroup v2 alone.
func inKernel(p systemd.Property, cg host.Cgroups, path string) string {
	controller := controllerOf[p.Name]
	if path == "" || controller == "" || cg.Has(controller) != "v2" {
		return ""
	}
	if off := switchedOff(cg, path, controller); off != "" {
		return off
	}
	file, _ := group.File(cg, path, controller)
	var all []group.Write
	switch p.Name {
	case "CPUWeight":
		all = []group.Write{{File: file("cpu.weight"), Value: p.Value}}
	case "IOWeight":
		all = []group.Write{{File: file("io.weight"), Device: "default", Value: p.Value}, {File: file("io.bfq.weight"), Device: "default", Value: bfqWeight(p.Value)}}
	case memoryLow:
		value := p.Value
		if value == "infinity" { // as systemd says it
			value = "max"
		}
		all = []group.Write{{File: file("memory.low"), Value: value, None: "0", Unit: int64(os.Getpagesize())}}
	}
	for _, w := range all {
		got, err := w.Effect()
		if err != nil || w.Holds(got) || filepath.Base(w.File) == "io.bfq.weight" && got == p.Value { // as systemd before 250 writes it
			continue
		}
		return fmt.Sprintf("%s is %s, not %s", filepath.Base(w.File), got, w.Value)
	}
	return ""
}

// bfqWeight is an IOWeight (1..10000) on BFQ's scale (1..1000), as systemd maps it (BFQ_WEIGHT).
func bfqWeight(weight string) string {
	n, err := strconv.Atoi(weight)
	if err != nil || n <= 100 {
		return weight
	}
	return strconv.Itoa(100 + (n-100)*(group.MaxBFQWeight-100)/(10000-100))
}

// returnOf returns the step that brings the main process of a unit back into its group, with those of its descendants that are beside
// it, or in no group of anybody's; nil if none is away. Other descendants may be in groups of their own by right, as sessions of sshd are, and what Berth's
// agent starts leaves by itself.
func returnOf(u systemd.Unit, cg host.Cgroups) (*group.Return, error) {
	path := strings.TrimPrefix(u.ControlGroup, "/")
	main, err := strconv.Atoi(u.MainPID)
	if err != nil || main <= 0 || path == "" {
		return nil, nil //nolint:nilerr,nilnil // it does not run, or has no main process
	}
	g := &group.Group{Path: path}
	pids := []int{main}
	family := group.Together(main)
	for _, h := range group.Hierarchies(cg) {
		if _, _, there, err := group.Inode(filepath.Join(h.Mount, path)); err != nil || !there {
			continue
		}
		g.In = append(g.In, h)
		home, err := h.GroupOf(main)
		if err != nil {
			return nil, nil //nolint:nilerr,nilnil // it has ended
		}
		if home == path || strings.HasPrefix(home, path+"/") {
			home = ""
		}
		for _, pid := range family {
			if at, err := h.GroupOf(pid); err == nil && (at == "" || at == home) && !slices.Contains(pids, pid) {
				pids = append(pids, pid)
			}
		}
	}
	return g.Return(pids, path)
}

// movedBy names the processes that another program moved; "" if there are none to bring back.
func movedBy(r *group.Return) string {
	if r == nil {
		return ""
	}
	return "somebody else moved " + strings.Join(r.Whom(), ", ")
}

// lostOfUnit returns the steps that restore a unit after changes by another program: first what gives its group the files again, and its
// processes. A part of it that is refused does not hold up the others.
func (v *Services) lostOfUnit(ctx context.Context, s *systemd.Set) (all []step.Step, err error) {
	u, err := s.Look(ctx)
	if err != nil {
		return nil, nil //nolint:nilerr // it is gone, or systemd does not answer: nothing can be set
	}
	cg, err := host.ReadCgroups("/proc")
	if err != nil {
		return nil, err
	}
	on, refused := v.handOnAgain(ctx, s, u, cg)
	if on != nil {
		all = append(all, on)
	}
	r, err := returnOf(u, cg)
	if r != nil {
		all = append(all, r)
	}
	if slices.ContainsFunc(v.valuesOf(s, u, cg), func(l proof.Limit) bool { return !l.Holds }) {
		all = append(all, s)
	}
	return all, errors.Join(refused, err)
}

// lostOfSlices returns the steps that restore the slices above protected units after changes by another program, and says which changes
// these are. A slice for which that is refused does not hold up the others.
func (v *Services) lostOfSlices(ctx context.Context) (all []step.Step, lost []string, err error) {
	j, err := v.slicesJournal(v.layout.Protected() + ".slices")
	if errors.Is(err, fs.ErrNotExist) || err == nil && j.Phase != step.Up {
		return nil, nil, nil
	}
	if err != nil {
		return nil, nil, err
	}
	cg, err := host.ReadCgroups("/proc")
	if err != nil {
		return nil, nil, err
	}
	for _, s := range j.Steps() {
		set, ok := s.(*systemd.Set)
		if !ok {
			continue
		}
		u, gone := set.Look(ctx)
		if gone != nil {
			continue // a slice that is not there protects nothing
		}
		on, refused := v.handOnAgain(ctx, set, u, cg)
		err = errors.Join(err, refused)
		if on != nil {
			all = append(all, on)
		}
		for _, l := range v.valuesOf(set, u, cg) {
			if l.Holds {
				continue
			}
			if refused == nil {
				all = append(all, set)
			}
			l.Key += " of " + set.Unit
			lost = append(lost, lostText(l))
		}
	}
	return all, lost, err
}

// lostText says of a value how it does not hold.
func lostText(l proof.Limit) string {
	if l.Why != "" {
		return l.Key + ": " + l.Why
	}
	return fmt.Sprintf("%s is %s, not %s", l.Key, l.ReadBack, l.Asked)
}
