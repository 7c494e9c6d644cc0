package bench

import (
	"context"
	"errors"
	"slices"
	"time"

	"berth/internal/vnode"
)

// bed is what an experiment is measured on: made before its first trial, taken apart after the last.
type bed struct {
	arms    []bedArm // the first is the reference
	rows    []bedRow
	targets []DiskUsed
	notes   []string
	gone    func() error // says in one sentence what vanished, if something did; nil: nothing can
	undo    []func() error
}

// bedArm is one side of a comparison.
type bedArm struct {
	ArmInfo
	run  Arm
	peer string // of a network experiment: its address from there
}

// bedRow is one line of an experiment's table, before it is measured.
type bedRow struct {
	StudyRow
	job  runner
	cold bool // the kernel's caches are dropped before each trial
}

// runner measures one row in an arm: fio, iperf3, stress-ng and Berth's own measurements are runners. Its caller may
// assume: nothing runs any more when it returns, also when ctx was cancelled; run and warm are kept as well as the
// program can, and the warm-up is not in the values; the values are those of the experiment's measures.
type runner interface {
	measure(ctx context.Context, a bedArm, run, warm time.Duration) (map[string]float64, error)
}

// close takes apart what was made, the last first.
func (b *bed) close() error {
	var errs []error
	for _, undo := range slices.Backward(b.undo) {
		errs = append(errs, undo())
	}
	b.undo = nil
	return errors.Join(errs...)
}

// device is the kernel's name of the disk that is measured, where there is one.
func (b *bed) device() string {
	if len(b.targets) == 0 {
		return ""
	}
	return b.targets[0].Device
}

// withNull inserts the reference again behind itself.
func (b *bed) withNull() {
	again := b.arms[0]
	again.Name, again.Title = nullArm, again.Title+", again"
	b.arms = slices.Insert(b.arms, 1, again)
}

// Lab makes what experiments are measured in.
type Lab struct {
	// Node makes a node and returns an arm that runs commands in it, and what removes it.
	Node func(context.Context, *vnode.Node) (Arm, func(), error)
	// Network makes the arms of a network benchmark, the host's first, and what removes them; networks as berth bench net
	// takes them, to a peer elsewhere or, for "", on this machine.
	Network func(ctx context.Context, o *NetOptions, peer string, networks []string) ([]NetArm, func(), error)
	Folder  func(dir string) error // refuses a folder that a node may not have; nil: none
	Self    string                 // path of this program
	Root    []string               // arguments with which it works on the same state: --root DIR
	Version string                 // of Berth
}
