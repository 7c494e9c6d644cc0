package bench

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"slices"
	"time"

	"berth/internal/refuse"
)

// StudyOptions say what berth bench run measures. The zero value of a field means its default.
type StudyOptions struct {
	Names     []string      `json:"names"`             // of experiments, or "all"
	Dirs      []string      `json:"dirs,omitempty"`    // folders in which data files are laid out; default /var/tmp
	Devices   []string      `json:"devices,omitempty"` // block devices whose data is destroyed
	Size      int64         `json:"size_bytes"`        // of a data file; default 1 GiB
	Budget    time.Duration `json:"budget_ns"`         // for a session; default 20 min
	MarginPct float64       `json:"margin_pct"`        // default 5
	Pairs     int           `json:"pairs,omitempty"`   // default: from a pilot
	Sessions  int           `json:"sessions"`          // default 1
	Seed      uint64        `json:"seed"`              // default: a random one
	Peer      string        `json:"peer,omitempty"`    // of network experiments; default: one on this machine
	Networks  []string      `json:"networks,omitempty"`
	Port      int           `json:"port,omitempty"`

	progress func(Progress)
}

func (o *StudyOptions) tell(p Progress) {
	if o.progress != nil {
		o.progress(p)
	}
}

// mostPairs are as many as a study makes of one row: beyond it the signed-rank distribution is no longer exact.
const mostStudyPairs = 200

// fewestRounds is a warm-up and the fewest pairs.
func (o *StudyOptions) fewestRounds() int {
	if o.Pairs > 0 {
		return 1 + o.Pairs
	}
	return 1 + MinPairs
}

// complete fills in defaults and checks what was given.
func (o *StudyOptions) complete() error {
	if len(o.Dirs)+len(o.Devices) == 0 {
		o.Dirs = []string{"/var/tmp"} // on a disk, where /tmp may be in memory
	}
	or(&o.Size, 1<<30)
	or(&o.Budget, 20*time.Minute)
	or(&o.MarginPct, 5)
	or(&o.Sessions, 1)
	or(&o.Seed, uint64(rand.Uint32()))
	switch {
	case len(o.Names) == 0:
		return refuse.Invalidf("no experiment is named: berth bench list shows them")
	case o.Size < 1<<20:
		return refuse.Invalidf("the size is %d bytes; at least 1MiB is needed", o.Size)
	case o.MarginPct <= 0 || o.MarginPct >= 100:
		return refuse.Invalidf("the margin is %v %%; it lies between 0 and 100", o.MarginPct)
	case o.Pairs < 0 || o.Pairs > mostStudyPairs:
		return refuse.Invalidf("%d pairs; at most %d", o.Pairs, mostStudyPairs)
	case o.Sessions < 1 || o.Sessions > 1000:
		return refuse.Invalidf("%d sessions; from 1 to 1000", o.Sessions)
	case o.Budget < time.Second:
		return refuse.Invalidf("a budget of %v is too small", o.Budget)
	}
	return nil
}

// study is a run at work.
type study struct {
	*Study
	o     StudyOptions
	lab   Lab
	j     *journal
	defs  []definition
	ended []endRecord
}

// RunStudy measures the experiments that o names, and writes each trial to the journal at the path when it is done. It
// returns a study, marked partial, beside the error when it was interrupted or an experiment broke; else a study or an
// error. What it made is gone and no command runs any more when it returns. progress may be nil.
func RunStudy(ctx context.Context, o StudyOptions, lab Lab, path string, progress func(Progress)) (*Study, error) {
	if err := o.complete(); err != nil {
		return nil, err
	}
	defs, err := find(o.Names)
	if err != nil {
		return nil, err
	}
	// At once, not row by row when its turn comes.
	if lab.Folder != nil && slices.ContainsFunc(defs, func(d definition) bool { return len(d.disk) > 0 }) {
		for _, dir := range o.Dirs {
			if err := lab.Folder(dir); err != nil {
				return nil, fmt.Errorf("measure in %s: %w", dir, err)
			}
		}
	}
	where, err := Computer()
	if err != nil {
		return nil, err
	}
	s := Study{
		Format: StudyFormat, Emulated: emulation(where.CPU), Started: time.Now().UTC(), Berth: lab.Version,
		Seed: o.Seed, MarginPct: o.MarginPct, Budget: o.Budget.Seconds(), Machine: where, Tools: []Tool{},
	}
	j, err := newJournal(path, startRecord{Format: JournalFormat, Options: o, Study: s})
	if err != nil {
		return nil, err
	}
	defer j.f.Close()
	o.progress = progress
	run := study{Study: &s, o: o, lab: lab, j: j, defs: defs}
	return run.finish(run.sessions(ctx))
}

// ResumeStudy goes on with a run that was killed or interrupted: what its journal holds is not measured again.
func ResumeStudy(ctx context.Context, lab Lab, path string, progress func(Progress)) (*Study, error) {
	j, err := openJournal(path)
	if err != nil {
		return nil, err
	}
	defer j.f.Close()
	o, s, ended := j.study()
	defs, err := find(o.Names)
	if err != nil {
		return nil, err
	}
	where, err := Computer()
	if err != nil {
		return nil, err
	}
	if where.CPU != s.Machine.CPU || where.Cores != s.Machine.Cores || where.Kernel != s.Machine.Kernel {
		return nil, refuse.Cannotf("go on there, or begin anew", "the run was begun on another machine or kernel: %s, %d cores, Linux %s",
			s.Machine.CPU, s.Machine.Cores, s.Machine.Kernel)
	}
	o.progress = progress
	run := study{Study: s, o: o, lab: lab, j: j, defs: defs, ended: ended}
	return run.finish(run.sessions(ctx))
}

// finish computes the rows. cause is why the run ended early, nil if it did not.
func (s *study) finish(cause error) (*Study, error) {
	s.Ended = time.Now().UTC()
	s.Partial = cause != nil
	s.Judge()
	counted := slices.ContainsFunc(s.Experiments, func(e Experiment) bool { return len(e.Rows) > 0 })
	if cause != nil && !counted {
		return nil, cause
	}
	return s.Study, cause
}

// sessions runs what is left of all sessions. An experiment that breaks does not keep the others from running.
func (s *study) sessions(ctx context.Context) error {
	var broken []error
	for number := 1; number <= s.o.Sessions; number++ {
		if !slices.ContainsFunc(s.defs, func(d definition) bool { return !s.hasEnded(number, d.Name) }) {
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
		s.session(now)
		if err := s.j.add(record{Leg: &legRecord{now}}); err != nil {
			return err
		}
	}
	return errors.Join(broken...)
}

// open begins a session or goes on with it.
func (s *study) open(number int) Session {
	now := Session{Number: number, Started: time.Now().UTC()}
	if i := slices.IndexFunc(s.Sessions, func(x Session) bool { return x.Number == number }); i >= 0 {
		now = s.Sessions[i]
		now.Resumed++
	}
	s.session(now)
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
		left -= e.wall(session)
	}
	var mine, all float64
	for i, d := range s.defs {
		if i < at || s.hasEnded(session, d.Name) {
			continue
		}
		w := d.weight(&s.o)
		if all += w; i == at {
			mine = w
		}
	}
	if e := s.experiment(s.defs[at].Name); e != nil { // resumed: what it has used is its own
		left += e.wall(session)
	}
	switch {
	case len(s.defs) == 1:
		return left
	case mine == 0:
		return 0
	}
	return time.Duration(float64(max(left, 0)) * mine / all)
}

// wall is how long the trials of a session took together.
func (e *Experiment) wall(session int) time.Duration {
	sum := int64(0)
	for _, t := range e.Trials {
		if t.Session == session {
			sum += t.WallMS
		}
	}
	return time.Duration(sum) * time.Millisecond
}

// one runs one experiment of a session, or what is left of it.
func (s *study) one(ctx context.Context, session, leg int, d definition, share time.Duration) (err error) {
	s.o.tell(Progress{What: "prepare " + d.Name, Left: share})
	b, err := d.make(ctx, &d, &s.o, s.lab)
	if err != nil {
		return s.skip(ctx, session, d, err)
	}
	defer func() {
		if e := b.close(); e != nil {
			err = errors.Join(err, fmt.Errorf("remove what %s was measured on: %w", d.Name, e))
		}
	}()
	x := &experimentRun{study: s, d: d, b: b, session: session, leg: leg, share: share, began: time.Now()}
	if d.program != nil {
		version, err := d.program.version(ctx, b.arms)
		if err != nil {
			return s.skip(ctx, session, d, err)
		}
		x.tool = &Tool{d.program.name, version}
	}
	if err := x.prepare(ctx); err != nil {
		return s.skip(ctx, session, d, err)
	}
	return x.run(ctx)
}

// skip notes that an experiment cannot be measured here. Where it was the only one asked for, that is the answer.
func (s *study) skip(ctx context.Context, session int, d definition, cause error) error {
	if kind := refuse.KindOf(cause); ctx.Err() != nil || kind == refuse.Failed || len(s.defs) == 1 {
		return cause
	}
	if e := s.experiment(d.Name); e != nil && len(e.Trials) > 0 {
		return cause // it was measured before, now it cannot be: that is no skipping
	}
	r := experimentRecord{Session: session, Experiment: Experiment{About: d.About, Skipped: cause.Error()}}
	s.begin(r)
	return s.j.add(record{Experiment: &r})
}

// order is the source of the random order of a round, the same when a run is resumed.
func (s *study) order(session int, name string, round int) *rand.Rand {
	h := fnv.New64a()
	_, _ = fmt.Fprintf(h, "%s, session %d, round %d", name, session, round) // never fails
	return rand.New(rand.NewPCG(s.o.Seed, h.Sum64()))
}
