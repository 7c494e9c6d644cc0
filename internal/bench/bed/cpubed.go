package bed

import (
	"context"
	"fmt"
	"runtime"

	"berth/internal/bench/published"
	"berth/internal/bench/result"
	"berth/internal/sys/text"
)

// instancesOf returns how many instances are measured: 1, 2, 4 … and as many as there are CPUs.
func instancesOf() []int {
	var all []int
	for n := 1; n < runtime.NumCPU(); n *= 2 {
		all = append(all, n)
	}
	return append(all, runtime.NumCPU())
}

func makeCPUBed(ctx context.Context, b *Bed, d *Definition, o *Options, lab Lab) error {
	return b.compute(ctx, d, o, lab, func(n int) (Runner, []string) {
		r := stressRun{n}
		return r, r.command(0)
	})
}

func makeDB12Bed(ctx context.Context, b *Bed, d *Definition, o *Options, lab Lab) error {
	return b.compute(ctx, d, o, lab, func(n int) (Runner, []string) {
		r := db12Run{n}
		return r, r.command()
	})
}

// compute adds a node without limits, and a row for each number of instances.
func (b *Bed) compute(ctx context.Context, d *Definition, o *Options, lab Lab, job func(n int) (Runner, []string)) error {
	if err := b.hostAndNode(ctx, d, &Options{Machine: o.Machine}, lab); err != nil {
		return err
	}
	for _, n := range instancesOf() {
		v := float64(n)
		r, command := job(n)
		row := Row{Row: result.Row{Name: fmt.Sprintf("%d instances", n), Value: &v, Command: command}, Job: r}
		if b.hasMachine() {
			row.Published = []result.Figure{published.OfMachine(d.Measures[0].Name, published.MachineCPULoss)}
		}
		b.Rows = append(b.Rows, row)
	}
	b.Rows[0].Name = "1 instance"
	if most := instancesOf()[len(instancesOf())-1]; b.hasMachine() && o.Machine.CPUs < most {
		b.Notes = append(b.Notes, fmt.Sprintf("the machine has %s: rows with more instances lose more than a machine costs",
			text.Count(o.Machine.CPUs, "CPU")))
	}
	return nil
}
