// Package bench measures what nodes cost: the same work on the host and in nodes, in random alternating order.
package bench

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"slices"
	"time"

	"berth/internal/bench/bed"
	"berth/internal/bench/result"
	"berth/internal/bench/side"
	"berth/internal/bench/syncbed"
	"berth/internal/sys/refuse"
)

// study is a run at work.
type study struct {
	*result.Study
	o     bed.Options
	lab   bed.Lab
	j     *journal
	defs  []bed.Definition
	ended []endRecord

	refused []error // why experiments were skipped
}

// Run measures the experiments that o names, and writes each trial to the journal at the path when it is done; "" for none. It
// returns a study, marked partial, beside the error when it was interrupted or an experiment broke; else a study or an
// error. What it made is gone and no command runs any more when it returns. progress may be nil.
func Run(ctx context.Context, o bed.Options, lab bed.Lab, path string, progress func(bed.Progress)) (*result.Study, error) {
	if err := o.Complete(); err != nil {
		return nil, err
	}
	defs, err := bed.Find(&o, syncbed.Definitions(&o)...)
	if err != nil {
		return nil, err
	}
	if o.Size < bed.LeastIsolated && slices.ContainsFunc(defs, func(d bed.Definition) bool { return d.Part != "" }) {
		return nil, refuse.Invalidf("the size is %d bytes; at least 64MiB is needed", o.Size)
	}
	// At once, not row by row when its turn comes.
	if lab.Folder != nil && slices.ContainsFunc(defs, func(d bed.Definition) bool { return d.UsesDisk() }) {
		for _, dir := range o.Dirs {
			if err := lab.Folder(dir); err != nil {
				return nil, fmt.Errorf("measure in %s: %w", dir, err)
			}
		}
	}
	o.Progress = progress
	if err := bed.CheckMachine(ctx, &o, lab, defs); err != nil {
		return nil, err
	}
	return measure(ctx, o, defs, lab, path, progress)
}

// measure runs experiments by options that are complete.
func measure(ctx context.Context, o bed.Options, defs []bed.Definition, lab bed.Lab, path string, progress func(bed.Progress)) (*result.Study, error) {
	where, err := side.Computer()
	if err != nil {
		return nil, err
	}
	s := result.Study{
		Format: result.Format, Emulated: result.Emulation(where.CPU), Started: time.Now().UTC(), Berth: lab.Version,
		Seed: o.Seed, MarginPct: o.MarginPct, Budget: o.Budget.Seconds(), Machine: where, Tools: []result.Tool{},
	}
	s.Title, s.OneByOne = defs[0].Page, defs[0].OneByOne
	if s.OneByOne {
		s.Notes = []string{"each row is judged by itself: of 20 rows without a difference one is expected to be called worse or better"}
	}
	j := &journal{}
	if path != "" {
		if j, err = newJournal(path, startRecord{Format: JournalFormat, Options: o, Study: s}); err != nil {
			return nil, err
		}
		defer j.f.Close()
	}
	o.Progress = progress
	run := study{Study: &s, o: o, lab: lab, j: j, defs: defs}
	return run.finish(run.sessions(ctx))
}

// Resume goes on with a run that was killed or interrupted: what its journal holds is not measured again.
func Resume(ctx context.Context, lab bed.Lab, path string, progress func(bed.Progress)) (*result.Study, error) {
	j, err := openJournal(path)
	if err != nil {
		return nil, err
	}
	defer j.f.Close()
	o, s, ended := j.study()
	defs, err := bed.Find(&o, syncbed.Definitions(&o)...)
	if err != nil {
		return nil, err
	}
	where, err := side.Computer()
	if err != nil {
		return nil, err
	}
	if where.CPU != s.Machine.CPU || where.Cores != s.Machine.Cores || where.Kernel != s.Machine.Kernel {
		return nil, refuse.Cannotf("go on there, or begin anew", "the run was begun on another machine or kernel: %s, %d cores, Linux %s",
			s.Machine.CPU, s.Machine.Cores, s.Machine.Kernel)
	}
	o.Progress = progress
	run := study{Study: s, o: o, lab: lab, j: j, defs: defs, ended: ended}
	left := slices.DeleteFunc(slices.Clone(defs), func(d bed.Definition) bool { return run.hasEnded(o.Sessions, d.Name) || !d.HasMachine(&o) })
	if len(left) > 0 {
		if err := bed.CheckMachine(ctx, &o, lab, left); err != nil {
			return nil, err
		}
	}
	return run.finish(run.sessions(ctx))
}

// finish computes the rows. cause is why the run ended early, nil if it did not.
func (s *study) finish(cause error) (*result.Study, error) {
	s.Ended = time.Now().UTC()
	s.Partial = cause != nil
	s.Judge()
	for i := range s.Experiments {
		e := &s.Experiments[i]
		if at := slices.IndexFunc(s.defs, func(d bed.Definition) bool { return d.Name == e.Name }); at >= 0 && s.defs[at].After != nil && len(e.Rows) > 0 {
			e.Notes = append(e.Notes, s.defs[at].After(e)...)
		}
	}
	counted := slices.ContainsFunc(s.Experiments, func(e result.Experiment) bool { return len(e.Rows) > 0 })
	if cause != nil && !counted {
		return nil, cause
	}
	if cause == nil && !counted && len(s.refused) > 0 {
		return nil, refuse.Join(s.refused) // nothing could be measured
	}
	return s.Study, cause
}

// sessions runs what is left of all sessions. An experiment that breaks does not keep the others from running.
func (s *study) sessions(ctx context.Context) error {
	var broken []error
	for number := 1; number <= s.o.Sessions; number++ {
		if !slices.ContainsFunc(s.defs, func(d bed.Definition) bool { return !s.hasEnded(number, d.Name) }) {
			continue
		}
		now := s.open(number)
		if err := s.j.add(record{Leg: &legRecord{now}}); err != nil {
			return err
		}
		for i, d := range s.defs {
			if s.hasEnded(number, d.Name) {
				continue
			}
			err := s.one(ctx, number, now.Resumed, d, s.share(number, i))
			if ctx.Err() != nil {
				return errors.Join(append(broken, ctx.Err())...)
			}
			end := endRecord{Session: number, Experiment: d.Name}
			if err != nil {
				broken = append(broken, err)
				end.Error = err.Error()
			}
			s.ended = append(s.ended, end)
			if err := s.j.add(record{End: &end}); err != nil {
				return errors.Join(append(broken, err)...)
			}
			s.j.sync()
		}
		now.Ended = time.Now().UTC()
		s.SetSession(now)
		if err := s.j.add(record{Leg: &legRecord{now}}); err != nil {
			return err
		}
	}
	return errors.Join(broken...)
}

// open begins a session or goes on with it.
func (s *study) open(number int) result.Session {
	now := result.Session{Number: number, Started: time.Now().UTC()}
	if i := slices.IndexFunc(s.Sessions, func(x result.Session) bool { return x.Number == number }); i >= 0 {
		now = s.Sessions[i]
		now.Resumed++
	}
	s.SetSession(now)
	return now
}

func (s *study) hasEnded(session int, name string) bool {
	return slices.ContainsFunc(s.ended, func(e endRecord) bool { return e.Session == session && e.Experiment == name })
}

// share divides what is left of the session's budget among the experiments that have not ended, by how long the
// fewest of their shortest trials take: what one does not need is the next ones'.
func (s *study) share(session, at int) time.Duration {
	left := s.o.Budget
	for _, e := range s.Experiments {
		left -= e.Wall(session)
	}
	var mine, all float64
	for i, d := range s.defs {
		if i < at || s.hasEnded(session, d.Name) {
			continue
		}
		w := d.Weight(&s.o)
		if all += w; i == at {
			mine = w
		}
	}
	if e := s.Experiment(s.defs[at].Name); e != nil { // resumed: what it has used is its own
		left += e.Wall(session)
	}
	switch {
	case len(s.defs) == 1:
		return left
	case mine == 0:
		return 0
	}
	return time.Duration(float64(max(left, 0)) * mine / all)
}

// one runs one experiment of a session, or what is left of it.
func (s *study) one(ctx context.Context, session, leg int, d bed.Definition, share time.Duration) (err error) {
	s.o.Tell(bed.Progress{What: "prepare " + d.Name, Left: share})
	b := &bed.Bed{}
	defer func() {
		if e := b.Close(); e != nil {
			err = errors.Join(err, fmt.Errorf("remove what %s was measured on: %w", d.Name, e))
		}
	}()
	if err := d.Make(ctx, b, &d, &s.o, s.lab); err != nil {
		return s.skip(ctx, session, d, err)
	}
	x := &experimentRun{study: s, d: d, b: b, session: session, leg: leg, share: share, began: time.Now()}
	if d.Program != nil {
		version, err := d.Program.Version(ctx, b.Arms)
		if err != nil {
			return s.skip(ctx, session, d, err)
		}
		x.tool = &result.Tool{Name: d.Program.Name, Version: version}
	}
	if err := x.prepare(ctx); err != nil {
		return s.skip(ctx, session, d, err)
	}
	if err := x.run(ctx); err != nil {
		return err
	}
	return x.note(b.Clocks(ctx))
}

// skip notes that an experiment cannot be measured here. Where it was the only one asked for, that is the answer.
func (s *study) skip(ctx context.Context, session int, d bed.Definition, cause error) error {
	if kind := refuse.KindOf(cause); ctx.Err() != nil || kind == refuse.Failed || len(s.defs) == 1 {
		return cause
	}
	if e := s.Experiment(d.Name); e != nil && len(e.Trials) > 0 {
		return cause // it was measured before, now it cannot be: that is no skipping
	}
	s.refused = append(s.refused, cause)
	r := experimentRecord{Session: session, Experiment: result.Experiment{About: d.About, Skipped: cause.Error()}}
	s.Begin(r.Tool, r.Experiment)
	return s.j.add(record{Experiment: &r})
}

// order is the source of the random order of a round, the same when a run is resumed.
func (s *study) order(session int, name string, round int) *rand.Rand {
	h := fnv.New64a()
	_, _ = fmt.Fprintf(h, "%s, session %d, round %d", name, session, round) // never fails
	return rand.New(rand.NewPCG(s.o.Seed, h.Sum64()))
}
