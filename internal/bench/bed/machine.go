package bed

import (
	"context"
	"fmt"
	"slices"
	"time"

	"berth/internal/bench/published"
	"berth/internal/bench/result"
	"berth/internal/bench/side"
	"berth/internal/spec/vnode"
	"berth/internal/sys/refuse"
)

// sides is how many trials a row has in a round: host, host again and node, and a machine if there is one.
func (o *Options) sides() int {
	if o.Machine != nil {
		return 4
	}
	return 3
}

// HasMachine says whether the experiment has an arm machine in this run: not if it measures in a folder, which no machine has.
func (d *Definition) HasMachine(o *Options) bool {
	if !d.Machines || o.Machine == nil || d.Disk == nil {
		return d.Machines && o.Machine != nil
	}
	disks, err := d.Chosen(o)
	return err == nil && !slices.ContainsFunc(disks, func(s Storage) bool { return s.Device == "" })
}

// CompareWith is how many arms a row of a disk experiment has beside the host and its second time.
func (d *Definition) CompareWith(o *Options) int {
	if d.HasMachine(o) {
		return 2
	}
	return 1
}

// machineStart is how many of the shortest trials of the experiment start take as long as the start of a machine: some 8 s.
const machineStart = 50

// CheckMachine refuses a run with machines, before anything is measured, where this host cannot run one, where no experiment has an arm
// for them, or where their image lacks what the experiments run. To see that, it starts one, without disks.
func CheckMachine(ctx context.Context, o *Options, lab Lab, defs []Definition) error {
	if o.Machine == nil {
		return nil
	}
	with := slices.DeleteFunc(slices.Clone(defs), func(d Definition) bool { return !d.HasMachine(o) })
	if len(with) == 0 {
		for _, d := range defs {
			if !d.Machines {
				continue
			}
			if _, err := d.Chosen(o); err != nil { // it would not run in any case
				return err
			}
			return refuse.Cannotf("give it a disk with --device, without --dir", "a machine has none of the host's folders, in which %s measures", d.Name)
		}
		return refuse.Cannotf("leave --machine out, or name fio-a to fio-g, iozone-each, iozone-all, wnodes-volume, cpu, cpu-db12 or start",
			"none of these experiments has an arm for machines")
	}
	err := lab.Can(ctx, specWithDisks(o, with))
	if err == nil {
		o.Tell(Progress{What: "try a machine", Left: o.Budget})
		err = tryMachine(ctx, o, lab, with)
	}
	if err != nil {
		return fmt.Errorf("measure in a machine: %w", err)
	}
	return nil
}

// specWithDisks is a machine with all disks that the experiments would give to one.
func specWithDisks(o *Options, defs []Definition) *vnode.Node {
	spec := o.Machine.Spec()
	for _, d := range defs {
		if d.Disk == nil {
			continue
		}
		disks, _ := d.Chosen(o) // HasMachine: it is not refused
		for _, s := range disks {
			one := vnode.Device{Path: s.Device, Access: accessTo(!s.DestroyData)}
			if !slices.Contains(spec.Devices, one) {
				spec.Devices = append(spec.Devices, one)
			}
		}
	}
	return spec
}

// tryMachine starts a machine and sees that it has what the experiments run, of the host's version. A program that the host itself lacks
// is not asked for: its experiment is left out.
func tryMachine(ctx context.Context, o *Options, lab Lab, defs []Definition) error {
	run, remove, err := lab.Node(ctx, o.Machine.Spec())
	if err != nil {
		return err
	}
	defer remove()
	if _, err := side.Emulation(ctx, run); err != nil {
		return lacks(ctx, "cat", err)
	}
	host, guest := Arm{Arm: result.Arm{Name: result.Host}, Run: side.Host}, Arm{Arm: result.Arm{Name: result.VirtualMachine}, Run: run}
	tried := map[*program]bool{}
	for _, d := range defs {
		switch p := d.Program; {
		case p == nil: // start, of which a machine has true and sleep; it was started with the latter
			if _, err := run(ctx, []string{"true"}); err != nil {
				return lacks(ctx, "true", err)
			}
		case !tried[p]:
			tried[p] = true
			if _, err := p.Version(ctx, []Arm{host}); err != nil {
				continue
			}
			if _, err := p.Version(ctx, []Arm{host, guest}); err != nil {
				return err
			}
		}
	}
	return ctx.Err()
}

// lacks refuses an image in which a small program does not run.
func lacks(ctx context.Context, program string, err error) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return refuse.Cannotf("take an image that has it", "%s does not run in the arm %s: %w", program, result.VirtualMachine, err)
}

// hostAndNode adds the host, the host again and, unless o says not to, a node that has the targets, and a machine if o asks for one.
func (b *Bed) hostAndNode(ctx context.Context, d *Definition, o *Options, lab Lab) error {
	b.Arms = []Arm{{Arm: result.Arm{Name: result.Host, Title: "host"}, Run: side.Host}}
	b.WithNull()
	if o.NullOnly {
		return nil
	}
	spec := diskNode(b.Targets)
	arm, err := b.Node(ctx, lab, spec)
	if err != nil {
		return err
	}
	if err := b.AddArm(Side{Name: result.Node, Title: "container node", Run: arm, Node: spec}); err != nil {
		return err
	}
	return b.withMachine(ctx, d, o, lab)
}

// withMachine adds an arm that is a machine with the bed's devices. Where there can be none, it says in the notes why.
func (b *Bed) withMachine(ctx context.Context, d *Definition, o *Options, lab Lab) error {
	if !d.Machines || o.Machine == nil {
		return nil
	}
	spec := o.Machine.Spec()
	for _, t := range b.Targets {
		if t.Kind == "file" {
			b.withoutMachine(fmt.Errorf("it has none of the host's folders (%s): give it a disk with --device", t.Folder()))
			return nil
		}
		spec.Devices = append(spec.Devices, vnode.Device{Path: t.Path, Access: accessTo(t.ReadsOnly)})
	}
	if err := b.lend(); err != nil {
		return err
	}
	a, err := b.machineArm(ctx, d, lab, spec)
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case err != nil:
		b.withoutMachine(err)
		return b.holdAgain()
	}
	b.Arms = append(b.Arms, a)
	b.Notes = append(b.Notes, published.OfMachines(len(d.Disk) > 0))
	return nil
}

// holderGone refuses to go on where a machine that holds devices alone no longer answers: then nobody may hold them, somebody may mount
// them, and the other arms would write to what is mounted.
func (b *Bed) holderGone(ctx context.Context) error {
	lent := slices.IndexFunc(b.held, func(h *heldDevice) bool { return h.letGo == nil })
	if lent < 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, answersWithin)
	defer cancel()
	for _, a := range b.Arms {
		if a.Name != result.VirtualMachine {
			continue
		}
		if _, err := a.Run(ctx, side.AskCPU()); err != nil {
			return refuse.Cannotf("begin anew", "the machine has ended or does not answer, and it held %s against being mounted: nothing more is written there: %w", b.held[lent].Device, err)
		}
	}
	return nil
}

// answersWithin is how long a machine may take to answer, however busy the host is.
const answersWithin = time.Minute

// withoutMachine says why the arm is left out.
func (b *Bed) withoutMachine(why error) {
	b.Notes = append(b.Notes, result.VirtualMachine+" is left out: "+why.Error())
}

// machineArm makes the machine, and sees that it has the same programs as the other arms.
func (b *Bed) machineArm(ctx context.Context, d *Definition, lab Lab, spec *vnode.Node) (_ Arm, err error) {
	run, remove, err := lab.Node(ctx, spec)
	if err != nil {
		return Arm{}, err
	}
	defer func() {
		if err != nil {
			remove()
		}
	}()
	a, err := armOf(Side{Name: result.VirtualMachine, Title: "virtual machine", Run: run, Node: spec})
	if err == nil {
		a.Emulated, err = side.Emulation(ctx, run)
	}
	if err == nil {
		var first side.ClockReading
		first, err = side.ReadClock(ctx, run)
		a.Clock = &first
	}
	if err == nil && d.Program != nil {
		_, err = d.Program.Version(ctx, append(slices.Clone(b.Arms), a))
	}
	if err != nil {
		return Arm{}, err
	}
	b.Later(func() error { remove(); return nil })
	return a, nil
}

// clockLimit is by how many percent a machine's clock may be off without a word.
const clockLimit = .5

// Clocks says of machines whose clock is surely off by how much: programs in them count their work by it. Call it after the trials.
func (b *Bed) Clocks(ctx context.Context) (notes []string) {
	for _, a := range b.Arms {
		if a.Clock == nil {
			continue
		}
		now, err := side.ReadClock(ctx, a.Run)
		if err != nil {
			notes = append(notes, "the clock of "+a.Name+" was not compared with the host's: "+err.Error())
			continue
		}
		low, high := now.FastPct(*a.Clock)
		if low > clockLimit || high < -clockLimit {
			notes = append(notes, fmt.Sprintf("CLOCK: that of %s ran between %.1f and %.1f %% faster than the host's (below 0: slower): what it did in a second of its own is wrong by as much",
				a.Name, low, high))
		}
	}
	return notes
}
