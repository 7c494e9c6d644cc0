package bed

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"time"

	"berth/internal/bench/result"
	"berth/internal/bench/side"
	"berth/internal/bench/wire"
	"berth/internal/spec/vnode"
)

// Bed has everything that an experiment is measured on. It is made before the first trial and taken apart after the last.
type Bed struct {
	Arms    []Arm // the first is the reference
	Rows    []Row
	Targets []result.DiskUsed
	Notes   []string
	Gone    func() error // says in one sentence what vanished, if something did; nil: nothing can
	undo    []func() error
	held    []*heldDevice // devices that nobody else may mount meanwhile
}

// Arm is one side of a comparison.
type Arm struct {
	result.Arm
	Run  side.Arm
	Slow bool   // a trial takes so long that what ran before it does not show: of a batch it has the last one alone
	peer string // of a network experiment: its address from there

	Clock *side.ClockReading // of a machine: what its clock showed first
}

// Row is one line of an experiment's table, before it is measured.
type Row struct {
	result.Row
	Job  Runner
	Cold bool // the kernel's caches are dropped before each trial
}

// Runner measures one row in an arm: fio, iperf3, stress-ng and Berth's own measurements are runners. Its caller may
// assume: nothing runs any more when it returns, also when ctx was cancelled; run and warm are kept as well as the
// program can, and the warm-up is not in the values; the values are those of the experiment's measures.
type Runner interface {
	Measure(ctx context.Context, a Arm, run, warm time.Duration) (map[string]float64, error)
}

// Side is an arm that its caller has made.
type Side struct {
	Name, Title string
	Run         side.Arm
	Node        any // the node's spec, put into the report as JSON; nil: no node
}

// AddArm adds an arm.
func (b *Bed) AddArm(s Side) error {
	a, err := armOf(s)
	if err == nil {
		b.Arms = append(b.Arms, a)
	}
	return err
}

func armOf(s Side) (Arm, error) {
	a := Arm{Arm: result.Arm{Name: s.Name, Title: s.Title}, Run: s.Run}
	if s.Node != nil {
		var err error
		if a.Node, err = json.Marshal(s.Node); err != nil {
			return Arm{}, fmt.Errorf("put the node's spec into the report: %w", err)
		}
	}
	return a, nil
}

// hasMachine says whether one of the arms is a machine.
func (b *Bed) hasMachine() bool {
	return slices.ContainsFunc(b.Arms, func(a Arm) bool { return a.Name == result.VirtualMachine })
}

// Later adds a function to be called when the bed is taken apart; the last one added is called first.
func (b *Bed) Later(undo func() error) { b.undo = append(b.undo, undo) }

// Node makes a node that lasts as long as the bed.
func (b *Bed) Node(ctx context.Context, lab Lab, n *vnode.Node) (side.Arm, error) {
	arm, remove, err := lab.Node(ctx, n)
	if err == nil {
		b.Later(func() error { remove(); return nil })
	}
	return arm, err
}

// Close takes the bed apart, what was made last first.
func (b *Bed) Close() error {
	var errs []error
	for _, undo := range slices.Backward(b.undo) {
		errs = append(errs, undo())
	}
	b.undo = nil
	return errors.Join(errs...)
}

// Device is the kernel's name of the disk that is measured, where there is one.
func (b *Bed) Device() string {
	if len(b.Targets) == 0 {
		return ""
	}
	return b.Targets[0].Device
}

// WithNull inserts the reference again behind itself.
func (b *Bed) WithNull() {
	again := b.Arms[0]
	again.Name, again.Title = result.Null, again.Title+", again"
	b.Arms = slices.Insert(b.Arms, 1, again)
}

// Lab makes the nodes and networks that experiments are measured in.
type Lab struct {
	// Node makes a node and returns an arm that runs commands in it, and the function that removes it.
	Node func(context.Context, *vnode.Node) (side.Arm, func(), error)
	// Network makes the arms of a network benchmark, the host's first, and returns the function that removes them.
	// networks are as berth bench net takes them; peer is another machine, or "" for this one.
	Network func(ctx context.Context, o *wire.NetOptions, peer string, networks []string) ([]wire.NetArm, func(), error)
	Can     func(context.Context, *vnode.Node) error                 // refuses a node that this host cannot run; it makes nothing
	Set     func(ctx context.Context, node, key, value string) error // changes one limit of a node that runs, as berth set does
	Folder  func(dir string) error                                   // refuses a folder that a node may not have; nil: none
	Mount   func(ctx context.Context, m vnode.Mount) error           // refuses a mount that this host cannot give to a node
	Subnet  func() (netip.Prefix, error)                             // an IPv4 network of 256 addresses that this host does not use
	Self    string                                                   // path of this program
	Root    []string                                                 // arguments with which it works on the same state: --root DIR
	At      func(root string) Lab                                    // returns the same for a Berth that keeps its state in another folder
	Version string                                                   // of Berth
}

// diskNode is the node that disk experiments run their commands in: image host, so that both arms run the same binaries.
func diskNode(targets []result.DiskUsed) *vnode.Node {
	n := &vnode.Node{
		Name: fmt.Sprintf("bench-%d", os.Getpid()), Image: vnode.Image{Kind: vnode.HostImage},
		Command: []string{"/bin/sleep", "infinity"},
	}
	for _, t := range targets {
		if t.Kind == "file" {
			dir := filepath.Dir(t.Path)
			n.Mounts = append(n.Mounts, vnode.Mount{Source: dir, Target: dir})
		} else {
			n.Devices = append(n.Devices, vnode.Device{Path: t.Path, Access: accessTo(t.ReadsOnly)})
		}
	}
	vnode.Defaults(n)
	return n
}

// accessTo is what a node may do to a device that is measured.
func accessTo(readsOnly bool) string {
	if readsOnly {
		return "r"
	}
	return "rw"
}
