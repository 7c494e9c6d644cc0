package bed

import (
	"context"
	"fmt"
	"runtime"

	"berth/internal/bench/result"
)

// instancesOf returns how many instances are measured: 1, 2, 4 … and as many as there are CPUs.
func instancesOf() []int {
	var all []int
	for n := 1; n < runtime.NumCPU(); n *= 2 {
		all = append(all, n)
	}
	return append(all, runtime.NumCPU())
}

func makeCPUBed(ctx context.Context, b *Bed, _ *Definition, _ *Options, lab Lab) error {
	return b.compute(ctx, lab, func(n int) (Runner, []string) {
		r := stressRun{n}
		return r, r.command(0)
	})
}

func makeDB12Bed(ctx context.Context, b *Bed, _ *Definition, _ *Options, lab Lab) error {
	return b.compute(ctx, lab, func(n int) (Runner, []string) {
		r := db12Run{n}
		return r, r.command()
	})
}

// compute adds a node without limits, and a row for each number of instances.
func (b *Bed) compute(ctx context.Context, lab Lab, job func(n int) (Runner, []string)) error {
	if err := b.hostAndNode(ctx, &Options{}, lab); err != nil {
		return err
	}
	for _, n := range instancesOf() {
		v := float64(n)
		r, command := job(n)
		b.Rows = append(b.Rows, Row{Row: result.Row{Name: fmt.Sprintf("%d instances", n), Value: &v, Command: command}, Job: r})
	}
	b.Rows[0].Name = "1 instance"
	return nil
}
