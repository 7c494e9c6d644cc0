package protect

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/moby/sys/mountinfo"

	"berth/internal/host"
	"berth/internal/host/block"
	"berth/internal/host/group"
	"berth/internal/host/systemd"
	"berth/internal/limit/cgroup"
	"berth/internal/limit/device"
	"berth/internal/limit/weight"
	"berth/internal/spec/vnode"
	"berth/internal/sys/proof"
	"berth/internal/sys/refuse"
	"berth/internal/sys/step"
)

// diskOf is a disk as --disk names it: a device, or a folder on one.
func diskOf(asked string) vnode.IO {
	if strings.HasPrefix(asked, "/dev/") {
		return vnode.IO{Device: asked}
	}
	return vnode.IO{Path: asked}
}

// knowDisks notes in the steps for a disk the names by which it is found after a boot: its number, its kernel name and the
// kernel's count of it are different then.
func knowDisks(steps []step.Step, disks map[string]block.Disk) error {
	for _, s := range steps {
		e, ok := s.(*block.Engine)
		if !ok {
			continue
		}
		e.ID = identityOf(e.Disk)
		for _, d := range disks {
			if !slices.ContainsFunc(d.Queues, func(q block.Queue) bool { return q.Number() == e.Disk.Number() }) {
				continue
			}
			var err error
			if e.Asked, err = filepath.Abs(d.Asked); err != nil {
				return fmt.Errorf("find %s: %w", d.Asked, err)
			}
			if e.Mount, err = mountPoint(e.Asked); err != nil {
				return err
			}
		}
	}
	return nil
}

// mountPoint is where the file system is mounted that a folder is on, "" for a device.
func mountPoint(asked string) (string, error) {
	if diskOf(asked).Device != "" {
		return "", nil
	}
	path, err := filepath.EvalSymlinks(asked)
	if err != nil {
		return "", fmt.Errorf("find the file system of %s: %w", asked, err)
	}
	mounts, err := mountinfo.GetMounts(mountinfo.ParentsFilter(path))
	if err != nil {
		return "", fmt.Errorf("find the file system of %s: %w", asked, err)
	}
	point := ""
	for _, m := range mounts {
		if len(m.Mountpoint) > len(point) {
			point = m.Mountpoint
		}
	}
	return point, nil
}

func identityOf(q block.Queue) string {
	id, _ := device.Identify("/sys", "b", q.Major, q.Minor)
	return id.ID
}

// engineHolds reports whether an engine is still on loan to its service, on the disk that was meant. After a boot another
// disk may have its name and its number.
func engineHolds(e *block.Engine) (bool, error) {
	if e.ID != "" && identityOf(e.Disk) != e.ID {
		return false, nil
	}
	return e.Held()
}

// planAgain plans an engine anew, on the disk as it is found now: by the noted names, else by the path of the command. It
// refuses what a first plan would refuse.
func (v *Services) planAgain(e *block.Engine, cg host.Cgroups) (*block.Engine, error) {
	io := diskOf(e.Asked)
	io.Name, io.Engine, io.Model = "disk", e.Engine, e.Model
	d, err := diskNow(e, io)
	if err != nil {
		return nil, err
	}
	d.Queues = slices.DeleteFunc(d.Queues, func(q block.Queue) bool { return len(d.Queues) > 1 && q.Name != e.Disk.Name })
	if err := d.LookFor(io, cg, block.Loans(v.layout.DiskLoans())); err != nil {
		return nil, err
	}
	steps, err := cgroup.Engines(&vnode.Node{IO: []vnode.IO{io}}, cg, map[string]block.Disk{io.Name: d}, e.Loans, e.By)
	if err != nil {
		return nil, err
	}
	return steps[0].(*block.Engine), nil
}

func diskNow(e *block.Engine, io vnode.IO) (block.Disk, error) {
	switch {
	case e.ID != "":
		number, ok := device.Identity{ID: e.ID}.Where("/sys", "b", 0, 0) // the number that it had says nothing
		if !ok {
			return block.Disk{}, refuse.NotFoundf("disk %s (%s) is not there, or two say that they are it", e.Disk.Name, e.ID)
		}
		return block.OfNumber("/sys", number[0], number[1], e.Asked)
	case e.Asked != "":
		at, err := mountPoint(e.Asked)
		if err == nil && at != e.Mount { // under an empty mount point lies another disk, often the host's own
			err = refuse.NotFoundf("%s is on the file system at %s, and was on the one at %s: mount that, then run berth repair", e.Asked, at, e.Mount)
		}
		if err != nil {
			return block.Disk{}, err
		}
		return block.Find("/sys", io)
	}
	return block.Disk{}, refuse.NotFoundf("nothing says which disk was %s: unprotect the service and protect it again", e.Disk.Name)
}

// enginesAgain switches a service's disks to their engines where that is not in force any more: since a boot, which the
// properties of its unit survive, or because the disk was unplugged. It returns a sentence for each engine that cannot be
// switched, and goes on with the others.
func (v *Services) enginesAgain(ctx context.Context, j *step.Journal) (did string) {
	var said []string
	for _, e := range enginesOff(ctx, j) { // all are looked at first: one may get the name and number that another had
		if err := v.engineAgain(ctx, j, e); err != nil {
			said = append(said, fmt.Sprintf("not switched to %s: %v", e.Engine, err))
			continue
		}
		said = append(said, fmt.Sprintf("disk %s switched to %s again", e.Disk.Name, e.Engine))
	}
	return strings.Join(said, "; ")
}

// enginesOff returns the engines of a service that are not in force.
func enginesOff(ctx context.Context, j *step.Journal) (off []*block.Engine) {
	for _, s := range j.Steps() {
		e, ok := s.(*block.Engine)
		if !ok {
			continue
		}
		held, err := engineHolds(e)
		if err != nil || !held || j.Unfinished() && e.Verify(ctx) != nil { // the last: killed while it was switched
			off = append(off, e)
		}
	}
	return off
}

// planEngines returns the engines that enginesAgain would switch to; an error if it can switch to none of those that are off.
func (v *Services) planEngines(ctx context.Context, j *step.Journal) (steps []step.Step, err error) {
	cg, err := host.ReadCgroups("/proc")
	if err != nil {
		return nil, err
	}
	var errs []error
	for _, e := range enginesOff(ctx, j) {
		now, err := v.planAgain(e, cg)
		if err != nil {
			errs = append(errs, fmt.Errorf("disk %s: not switched to %s: %w", e.Disk.Name, e.Engine, err))
			continue
		}
		steps = append(steps, now)
	}
	if len(steps) > 0 {
		return steps, nil
	}
	return nil, errors.Join(errs...)
}

func (v *Services) engineAgain(ctx context.Context, j *step.Journal, e *block.Engine) error {
	cg, err := host.ReadCgroups("/proc")
	if err != nil {
		return err
	}
	now, err := v.planAgain(e, cg)
	if err != nil {
		return err
	}
	if err := e.Forget(ctx); err != nil { // where it was unplugged
		return err
	}
	e.Disk, e.V2 = now.Disk, now.V2
	return j.Redo(ctx, e)
}

// showEngine says to which engine a disk was switched.
func showEngine(ctx context.Context, e *block.Engine) proof.Limit {
	s := proof.Limit{Key: "disk " + e.Disk.Name, Asked: string(e.Engine), By: string(e.Engine)}
	held, err := engineHolds(e)
	if err == nil && held {
		err = e.Verify(ctx)
	}
	switch {
	case err != nil:
		s.Note = fmt.Sprint(err)
	case !held:
		s.Note = "not in force since a boot, or since the disk was unplugged: berth repair switches it again"
	default:
		s.ReadBack, s.Holds = string(e.Engine), true
	}
	return s
}

// settleBoot keeps a unit that switches disks again at boot, as long as a unit of systemd is protected that has one
// switched. It is made from the journals whenever it is not as they need it: so a kill leaves nothing that the next
// command does not see. The caller holds the lock.
func (v *Services) settleBoot() error {
	if !systemd.Running() {
		return nil
	}
	targets, err := v.journals()
	if err != nil {
		return err
	}
	program, err := systemd.Program()
	if err != nil {
		return err
	}
	unit := systemd.AtBoot{
		Dir: systemd.UnitDir, Name: v.layout.ProtectUnit(), Args: slices.Concat([]string{program}, v.layout.Args(), []string{"repair"}),
		By:    "berth protect --engine; berth unprotect removes it with the last such service",
		About: "Disks of protected services, switched to their engines again (berth repair)",
		// Disks without a mount appear once udev has handled the events of the boot.
		Order: "Wants=systemd-udev-settle.service\nAfter=systemd-udev-settle.service local-fs.target remote-fs.target\n",
	}
	if !slices.ContainsFunc(targets, v.switchesAtBoot) {
		return unit.Remove()
	}
	if unit.Written() {
		return nil
	}
	return unit.Write()
}

// switchesAtBoot reports whether a target outlives a boot and has a disk switched, as far as its journal can be read.
func (v *Services) switchesAtBoot(t target) bool {
	if t.kind != kindUnit {
		return false
	}
	j, err := v.journalOf(t)
	return err != nil || slices.ContainsFunc(j.Steps(), func(s step.Step) bool { _, ok := s.(*block.Engine); return ok })
}

// weighAgain writes the weights of the groups beside the host's services again, where the kernel has other values: an
// engine that a disk was switched to may have brought a new file in which every group has weight 100. The caller holds
// the lock.
func (v *Services) weighAgain(ctx context.Context) error {
	cg, err := host.ReadCgroups("/proc")
	if err != nil {
		return err
	}
	targets, err := v.journals()
	errs := []error{err, v.weighClasses(ctx, cg)}
	for _, t := range targets {
		if err := v.weighTarget(ctx, t, cg); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", t.name, err))
		}
	}
	return errors.Join(errs...)
}

// weighClasses is weighAgain for the groups of classes that are there.
func (v *Services) weighClasses(ctx context.Context, cg host.Cgroups) error {
	var errs []error
	for _, n := range standings() {
		path := v.layout.StandingCgroup(n.StandingGroup())
		c := weight.ClassStep(&n, cg, path+"/x")
		if c == nil || !group.There(cg, path) || c.Verify(ctx) == nil {
			continue
		}
		if err := step.Do(ctx, c); err != nil && group.There(cg, path) { // else its last node has ended meanwhile
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// standings are nodes of every standing that there is a group for.
func standings() []vnode.Node {
	var all []vnode.Node
	for _, class := range []vnode.Class{"", vnode.Batch, vnode.Storage} {
		for _, idle := range []bool{false, true} {
			all = append(all, vnode.Node{Class: class, CPU: vnode.CPU{Idle: &idle}})
		}
	}
	return slices.DeleteFunc(all, func(n vnode.Node) bool { return n.StandingGroup() == "" })
}

// weighTarget is weighAgain for a protected service. systemd writes a unit's weights when one is set, but not when their
// file appears in the kernel.
func (v *Services) weighTarget(ctx context.Context, t target, cg host.Cgroups) error {
	j, err := v.journalOf(t)
	if err != nil || j.Phase != step.Up {
		return nil //nolint:nilerr // reported by whoever settles it
	}
	for _, s := range j.Steps() {
		switch s := s.(type) {
		case *weight.Class:
			if s.Verify(ctx) != nil && group.There(cg, s.Name) {
				err = errors.Join(err, step.Do(ctx, s))
			}
		case *weight.Foreign:
			err = errors.Join(err, s.Fill())
		case *systemd.Set:
			u, lookErr := s.Look(ctx)
			changed := slices.ContainsFunc(s.Properties, func(p systemd.Property) bool { return !p.Holds(u.Properties[p.Name]) })
			if lookErr != nil || changed || !weight.NormalToBFQ(cg, strings.TrimPrefix(u.ControlGroup, "/")) {
				continue // it does not run, or another program changed its properties, or it has its weight
			}
			err = errors.Join(err, step.Do(ctx, s))
		}
	}
	return err
}

// Weigh gives the groups of classes and the protected services their weights again, after a node switched a disk to another
// engine.
func (v *Services) Weigh(ctx context.Context) error {
	cg, err := host.ReadCgroups("/proc")
	if err != nil {
		return err
	}
	if _, err := os.Stat(v.layout.Protected()); errors.Is(err, fs.ErrNotExist) {
		return v.weighClasses(ctx, cg)
	}
	l, err := v.lock(ctx)
	if err != nil {
		return err
	}
	defer l.Close()
	return v.weighAgain(ctx)
}
