package bench

import (
	"context"
	"encoding/json"
	"fmt"
	"runtime"
)

// instancesOf returns how many instances are measured: 1, 2, 4 … and as many as there are CPUs.
func instancesOf() []int {
	var all []int
	for n := 1; n < runtime.NumCPU(); n *= 2 {
		all = append(all, n)
	}
	return append(all, runtime.NumCPU())
}

func makeCPUBed(ctx context.Context, _ *definition, _ *StudyOptions, lab Lab) (*bed, error) {
	return makeComputeBed(ctx, lab, func(n int) (runner, []string) {
		r := stressRun{n}
		return r, r.command(0)
	})
}

func makeDB12Bed(ctx context.Context, _ *definition, _ *StudyOptions, lab Lab) (*bed, error) {
	return makeComputeBed(ctx, lab, func(n int) (runner, []string) {
		r := db12Run{n}
		return r, r.command()
	})
}

// makeComputeBed makes a node without limits, and a row for each number of instances.
func makeComputeBed(ctx context.Context, lab Lab, job func(n int) (runner, []string)) (*bed, error) {
	spec := diskNode(nil)
	text, err := json.Marshal(spec)
	if err != nil {
		return nil, fmt.Errorf("put the node's spec into the report: %w", err)
	}
	arm, remove, err := lab.Node(ctx, spec)
	if err != nil {
		return nil, err
	}
	b := &bed{undo: []func() error{func() error { remove(); return nil }}}
	b.arms = []bedArm{
		{ArmInfo: ArmInfo{Name: hostArm, Title: "host"}, run: Host},
		{ArmInfo: ArmInfo{Name: nodeArm, Title: "container node", Node: text}, run: arm},
	}
	b.withNull()
	for _, n := range instancesOf() {
		v := float64(n)
		r, command := job(n)
		b.rows = append(b.rows, bedRow{StudyRow: StudyRow{Name: fmt.Sprintf("%d instances", n), Value: &v, Command: command}, job: r})
	}
	b.rows[0].Name = "1 instance"
	return b, nil
}
