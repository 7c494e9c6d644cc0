package bed

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"berth/internal/bench/result"
	"berth/internal/bench/side"
	"berth/internal/bench/starts"
	"berth/internal/sys/refuse"
)

// The rows of the experiment.
const (
	runOnce    = "run and remove"
	makeRemove = "make, start, remove"
)

// makeStartBed makes a root of busybox, and the bundle or configuration for each installed runtime. The reference is runc, or crun
// if there is no runc.
func makeStartBed(ctx context.Context, b *Bed, d *Definition, o *Options, lab Lab) error {
	dir, err := os.MkdirTemp(startDir(), "berth-bench-start-")
	if err != nil {
		return fmt.Errorf("make a folder for roots and bundles: %w", err)
	}
	b.undo = append(b.undo, func() error { return os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o711); err != nil { // the nodes' ids pass through
		return err
	}
	root := filepath.Join(dir, "image")
	if err := starts.BusyboxRoot(root); err != nil {
		return err
	}
	berth := starts.Berth{Self: lab.Self, Root: lab.Root}
	undo, err := berth.RemoveLater()
	if err != nil {
		return err
	}
	b.Later(undo)
	var all []starts.Starter
	for _, runtime := range []string{"runc", "crun"} {
		s, err := starts.OCIStarter(runtime, dir, root)
		if err != nil {
			b.Notes = append(b.Notes, runtime+" is left out: "+err.Error())
			continue
		}
		all = append(all, s)
	}
	if s, ok := starts.PodmanStarter(dir, root); ok {
		all = append(all, s)
	}
	if s, ok, err := starts.LXCStarter(dir, root); err != nil {
		return err
	} else if ok {
		all = append(all, s)
	}
	ours, err := berth.Starter(dir, root)
	if err != nil {
		return err
	}
	all = append(all, ours)
	if d.HasMachine(o) {
		switch s, err := berth.MachineStarter(ctx, o.Machine, dir); {
		case ctx.Err() != nil:
			return ctx.Err()
		case err != nil:
			b.withoutMachine(err)
		default:
			all = append(all, s)
			b.Notes = append(b.Notes, "a machine is started once a round, where other arms are started several times in a row: that takes seconds, beside which it does not show what ran before")
		}
	}
	return b.tryStarters(ctx, all)
}

// startDir returns the folder for all files: one in memory, as /run is on most hosts.
func startDir() string {
	if fi, err := os.Stat("/dev/shm"); err == nil && fi.IsDir() {
		return "/dev/shm"
	}
	return ""
}

// tryStarters starts each runtime once and makes an arm of each that works.
func (b *Bed) tryStarters(ctx context.Context, all []starts.Starter) error {
	once := startRun{runOnce, map[string][][]string{}, nil}
	lasting := startRun{makeRemove, map[string][][]string{}, map[string][]string{}}
	for _, s := range all {
		once.of[s.Name], lasting.of[s.Name], lasting.undo[s.Name] = s.Once, s.Lasting, s.Undo
		a := Arm{Arm: result.Arm{Name: s.Name, Title: s.Title, Emulated: s.Emulated}, Run: side.Host, Slow: s.Slow}
		_, err := once.Measure(ctx, a, 0, 0)
		if err == nil {
			_, err = lasting.Measure(ctx, a, 0, 0)
		}
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case err != nil && s.Name == "berth":
			return err
		case err != nil:
			b.Notes = append(b.Notes, fmt.Sprintf("%s is left out: %v", s.Name, err))
			continue
		}
		b.Arms = append(b.Arms, a)
	}
	if len(b.Arms) < 2 {
		return refuse.Cannotf("apt-get install runc", "no other runtime that works here is installed: there is nothing to compare with")
	}
	ref := b.Arms[0].Name
	once.of[result.Null], lasting.of[result.Null] = once.of[ref], lasting.of[ref]
	b.WithNull()
	b.Rows = []Row{
		{Row: result.Row{Name: runOnce, Command: once.of["berth"][0]}, Job: once},
		{Row: result.Row{Name: makeRemove, Command: lasting.of["berth"][0]}, Job: lasting},
	}
	return nil
}

// startRun is a row: the commands of each arm, one after the other.
type startRun struct {
	name string
	of   map[string][][]string // by the arm's name
	undo map[string][]string   // after a trial that failed, so that the next one makes a node anew
}

func (s startRun) Measure(ctx context.Context, a Arm, _, _ time.Duration) (map[string]float64, error) {
	limit := starts.Limit
	if a.Slow {
		limit = starts.MachineLimit
	}
	ms, err := starts.Took(ctx, s.of[a.Name], limit)
	if err != nil {
		if undo := s.undo[a.Name]; undo != nil {
			_, _ = starts.Took(context.WithoutCancel(ctx), [][]string{undo}, starts.Limit) // there may be none
		}
		return nil, err
	}
	return map[string]float64{"wall_ms": ms}, nil
}
