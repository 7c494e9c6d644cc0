// Package bench measures what a node costs: the same fio jobs on the host and in the node, in random alternating order.
package bench

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"berth/internal/refuse"
)

// Options say what to measure. The zero value of a field means its default.
type Options struct {
	Dir         string // folder in which the data file is laid out; removed afterwards
	Device      string // block device to use instead of a file; read only …
	DestroyData bool   // … unless this is given: then its first Size bytes are overwritten
	Size        int64  // bytes of file or device that are used; default 256 MiB when Quick, else 1 GiB

	Quick     bool          // 4 KiB and 32 KiB of each shape, done within two minutes
	Rows      []Row         // instead of those that Quick chooses
	Run, Warm time.Duration // of one trial, and before it; default 300 and 100 ms when Quick, else 1 s and 300 ms
	Pairs     int           // blocks a row; default: as many as fit in Budget, 6 at least
	Budget    time.Duration // for the whole run; default 100 s when Quick, else 20 min
	MarginPct float64       // for the verdicts; default 10 when Quick, else 5
	Seed      uint64        // of the order; default: a random one
	Node      any           // the node's spec, put into the report as JSON

	fresh bool // trials make a second file beside the first
}

// Progress is told before each trial, and while the data is laid out.
type Progress struct {
	What        string // "lay out", or "read 4K x32 node"
	Done, Total int64  // bytes laid out, or trials that are done
	Left        time.Duration
	SoFar       string // what the rows would be called now; it decides nothing
}

// layOut is Progress.What before the trials.
const layOut = "lay out"

// maxPairs bounds what a large budget is used for: beyond it a report is large and hardly more precise.
const maxPairs = 100

// endures is how many trials may fail in a row before a run gives up: then an arm is broken, not disturbed.
const endures = 5

// Run measures. It returns a report, marked partial, beside the error when the run was interrupted or an arm broke
// after at least one block had been measured; else a report or an error. The data file is gone and no command runs any
// more when it returns. progress may be nil.
func Run(ctx context.Context, o Options, arms Arms, progress func(Progress)) (*Report, error) {
	return runArms(ctx, o, arms.list(), progress, nil)
}

// runArms is Run for any arms, the host's first; only host, node and null are compared. ready may be nil: it is told the
// machine when the data is laid out.
func runArms(ctx context.Context, o Options, arms []namedArm, progress func(Progress), ready func(Machine)) (_ *Report, err error) {
	if progress == nil {
		progress = func(Progress) {}
	}
	if err := o.complete(); err != nil {
		return nil, err
	}
	start := time.Now()
	version, err := fioVersion(ctx, arms)
	if err != nil {
		return nil, err
	}
	target, undo, err := prepare(ctx, o, func(done, total int64) {
		progress(Progress{What: layOut, Done: done, Total: total})
	})
	if err != nil {
		return nil, err
	}
	defer func() {
		if e := undo(); e != nil {
			err = errors.Join(err, fmt.Errorf("remove the data file: %w", e))
		}
	}()
	where, err := machine(target)
	if err != nil {
		return nil, err
	}
	rep := &Report{
		Format: Format, Started: start.UTC(), Seed: o.Seed, Quick: o.Quick, MarginPct: o.MarginPct,
		RunMillis: o.Run.Milliseconds(), Warm: o.Warm.Milliseconds(), Fio: version, Machine: where, Target: target,
	}
	if o.Node != nil && slices.ContainsFunc(arms, func(a namedArm) bool { return a.name == nodeArm }) {
		if rep.Node, err = json.Marshal(o.Node); err != nil {
			return nil, fmt.Errorf("put the node's spec into the report: %w", err)
		}
	}
	if ready != nil {
		ready(where)
	}
	rows, notes := fitting(o, target, where.Cores)
	if len(rows) == 0 {
		return nil, refuse.Invalidf("no row is left to measure: %s", notes)
	}
	rep.Notes = notes
	s := disk(o, arms, rows, target, rep)
	s.progress, s.start = progress, start
	err = s.run(ctx, func(pairs int) { rep.Pairs = pairs })
	return rep.finish(rows, target, o, err)
}

// disk returns the series of fio's trials.
func disk(o Options, arms []namedArm, rows []Row, target Target, rep *Report) *series[Measured] {
	s := &series[Measured]{
		pairs: o.Pairs, budget: o.Budget, trial: o.Run + o.Warm, order: rand.New(rand.NewPCG(o.Seed, 0)),
		keep: func(h Head, m *Measured) { rep.Trials = append(rep.Trials, Trial{Head: h, Measured: m}) },
		measure: func(ctx context.Context, _, row, arm int) (*Measured, error) {
			// A request that never ends must not hold the run for ever; a slow disk under many threads may take its time.
			ctx, cancel := context.WithTimeout(ctx, o.Run+o.Warm+time.Minute)
			defer cancel()
			out, err := arms[arm].run(ctx, command(rows[row], target, o.Run, o.Warm))
			if err != nil {
				return nil, err
			}
			m, err := parseFio(out, rows[row].Shape)
			return &m, err
		},
	}
	for _, r := range rows {
		s.rows = append(s.rows, r.Name)
	}
	for _, a := range arms {
		s.arms = append(s.arms, a.name)
	}
	return s
}

// Complete fills in defaults and checks what was given. Run does it itself.
func (o *Options) Complete() error { return o.complete() }

func (o *Options) complete() error {
	def := Options{Size: 1 << 30, Run: time.Second, Warm: 300 * time.Millisecond, Budget: 20 * time.Minute, MarginPct: 5}
	if o.Quick {
		def = Options{Size: 256 << 20, Run: 300 * time.Millisecond, Warm: 100 * time.Millisecond, Budget: 100 * time.Second, MarginPct: 10}
	}
	or(&o.Size, def.Size)
	or(&o.Run, def.Run)
	or(&o.Warm, def.Warm)
	or(&o.Budget, def.Budget)
	or(&o.MarginPct, def.MarginPct)
	or(&o.Seed, uint64(rand.Uint32())) // 32 bits: every reader of JSON keeps them exactly
	switch {
	case (o.Dir == "") == (o.Device == ""):
		return refuse.Invalidf("either a folder or a device must be given")
	case o.DestroyData && o.Device == "":
		return refuse.Invalidf("destroy-data goes with a device")
	case o.Size < 1<<20:
		return refuse.Invalidf("the size is %d bytes; at least 1MiB is needed", o.Size)
	case o.Run < 50*time.Millisecond || o.Warm < time.Millisecond:
		return refuse.Invalidf("a trial of %v after %v is too short: at least 50ms after 1ms", o.Run, o.Warm)
	case o.MarginPct <= 0 || o.MarginPct >= 100:
		return refuse.Invalidf("the margin is %v %%; it lies between 0 and 100", o.MarginPct)
	case o.Pairs < 0 || o.Budget < 0:
		return refuse.Invalidf("pairs and budget are not below 0")
	}
	return nil
}

func or[T comparable](v *T, def T) {
	var zero T
	if *v == zero {
		*v = def
	}
}

// fitting returns the rows that the target allows, and why others are left out.
func fitting(o Options, t Target, cores int) (rows []Row, notes []string) {
	all := o.Rows
	if all == nil {
		all = Rows(o.Quick, cores)
	}
	for _, r := range all {
		switch {
		case t.ReadsOnly && r.Shape.Writes():
			notes = append(notes, r.Name+" is left out: a device is written only with --destroy-data")
		case t.DirectIO > 0 && r.Block%t.DirectIO != 0:
			notes = append(notes, fmt.Sprintf("%s is left out: direct requests come in multiples of %d bytes here", r.Name, t.DirectIO))
		default:
			rows = append(rows, r)
		}
	}
	if t.ReadsOnly {
		notes = append(notes, "the device was not written first: blocks that never were may be read without its medium")
	}
	return rows, notes
}

// finish computes the rows. cause is why the series ended early, nil if it did not.
func (r *Report) finish(rows []Row, t Target, o Options, cause error) (*Report, error) {
	r.Ended = time.Now().UTC()
	counted := slices.ContainsFunc(r.Trials, func(t Trial) bool { return t.Round > 0 && t.Measured != nil })
	if cause != nil && !counted {
		return nil, cause
	}
	r.Partial = cause != nil
	r.Rows, r.Carry = analyse(rows, r.Trials, r.Machine.Cores, r.MarginPct), ofDisk(r.Trials)
	for i := range r.Rows {
		p, err := published(r.Rows[i].Row)
		if err != nil {
			return nil, err
		}
		r.Rows[i].Published = p
		r.Rows[i].Command = command(r.Rows[i].Row, t, o.Run, o.Warm)
	}
	return r, cause
}
