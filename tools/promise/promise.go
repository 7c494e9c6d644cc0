// Package promise counts how often the benchmark keeps what it promises, for the tools that show it on a real disk.
package promise

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"berth/internal/bench"
	"berth/internal/bench/bed"
	"berth/internal/bench/result"
	"berth/internal/bench/stat"
)

// Promised is what a run said before it began: the margin that so many pairs will decide, with the same row's pairs of the run
// before as the pilot; and what the run then said at this margin, by the signed-rank interval, whose width the promise is about.
// (The margin of stat.Comparison.Could is read off the run's own spread: there, undecided is rare by construction.)
type Promised struct {
	Pct *float64     // percent; nil if the pilot was too short
	At  stat.Verdict // undecided without a margin
}

// Of returns the promise that follows from a pilot, and whether the pairs kept it.
func Of(pilot, pairs []float64) Promised {
	p := Promised{At: stat.Undecided}
	if pct, ok := stat.MarginFor(pilot, len(pairs)); ok {
		p.Pct, p.At = &pct, stat.Decide(stat.NewEstimate(pairs), stat.LogMargin(pct))
	}
	return p
}

// Pairs returns the rounds of a row in which both the host and the arm were measured.
func Pairs(e *result.Experiment, row, arm string) stat.Pairs {
	host, other := map[int]float64{}, map[int]float64{}
	for _, t := range e.Trials {
		if v := t.Values["iops"]; t.Row == row && t.Round > 0 && v > 0 {
			switch t.Arm {
			case result.Host:
				host[t.Round] = v
			case arm:
				other[t.Round] = v
			}
		}
	}
	return stat.PairUp(host, other)
}

// Repeat runs the jobs again and again, each time with another order, from o.Seed on, and puts the trials of all runs into one
// experiment. name gives a row of a run its name there. Each run is the pilot of the next one; run 0 is that alone, so it gives no rows.
// Repeat ends before the run for which more(run, rows so far) is false. Interrupted, it returns what it has, marked partial, beside the
// error: a run that was cut short has rows with fewer pairs, which are not counted.
func Repeat(ctx context.Context, o bed.Options, about result.About, jobs []bed.Job, sides []bed.Side, name func(run int, row string) string, more func(run, rows int) bool) (*result.Study, error) {
	var all *result.Study
	for run := 0; all == nil || more(run, len(all.Experiments[0].Rows)); run++ {
		s, err := bench.RunJobs(ctx, o, about, jobs, sides, nil)
		if err != nil {
			if all != nil {
				all.Partial = true
				all.Judge()
			}
			return all, fmt.Errorf("measure run %d: %w", run, err)
		}
		from := s.Experiments[0]
		if all == nil {
			all = s
			all.OneByOne, all.Experiments[0].Rows, all.Experiments[0].Trials = true, nil, nil
		}
		e := &all.Experiments[0]
		take(e, &from, func(row string) string { return name(run, row) })
		for _, r := range from.Rows {
			if r.Name = name(run, r.Name); run > 0 {
				e.Rows = append(e.Rows, r)
			}
		}
		all.Ended = s.Ended
		o.Seed++
	}
	return all, nil
}

// take adds the trials of another study to an experiment, their rows renamed.
func take(e *result.Experiment, from *result.Experiment, rename func(row string) string) {
	for _, t := range from.Trials {
		t.Row = rename(t.Row)
		if t.AfterRow != "" {
			t.AfterRow = rename(t.AfterRow)
		}
		t.Seq = len(e.Trials) + 1
		e.Trials = append(e.Trials, t)
	}
}

// Comparison returns the comparison of a row's arm with the host; nil if there is none.
func Comparison(r *result.Row, arm string) *stat.Comparison {
	for _, c := range r.Compared {
		if c.Arm == arm {
			return c.Penalty
		}
	}
	return nil
}

// Criterion is a promise that is counted.
type Criterion struct {
	What  string
	Count int
	Limit int
	Most  bool // the limit is an upper one
}

func (c Criterion) met() bool {
	if c.Most {
		return c.Count <= c.Limit
	}
	return c.Count >= c.Limit
}

// Lines prints a line for each criterion, and how many are met.
func Lines(all []Criterion, of int) string {
	var b strings.Builder
	met := 0
	for _, c := range all {
		word, verdict := "least", "met"
		if c.Most {
			word = "most"
		}
		if c.met() {
			met++
		} else {
			verdict = "MISSED"
		}
		fmt.Fprintf(&b, "%-58s %3d of %d, at %-5s %3d: %s\n", c.What, c.Count, of, word, c.Limit, verdict)
	}
	fmt.Fprintf(&b, "%d of %d criteria met\n", met, len(all))
	return b.String()
}

// Missed is an error that names the criteria that are not met, nil where all are.
func Missed(all []Criterion) error {
	var err error
	for _, c := range all {
		if !c.met() {
			err = errors.Join(err, fmt.Errorf("not met: %s (%d, limit %d)", c.What, c.Count, c.Limit))
		}
	}
	return err
}

// Tools returns the disk and the fio that a study was measured with; "" where it does not say.
func Tools(s *result.Study) (disk, fio string) {
	if t := s.Experiments[0].Targets; len(t) > 0 {
		disk = t[0].Device
	}
	if len(s.Tools) > 0 {
		fio = s.Tools[0].Version
	}
	return disk, fio
}

// FirstLine names the machine of a piece of evidence, an emulated one as such.
func FirstLine(m result.Machine, name string) string {
	if name == "" {
		name, _ = os.Hostname()
	}
	what, cpu := "machine", m.CPU
	if m.Emulation() != "" {
		what = "EMULATED machine, its speeds are not those of hardware:"
	}
	if cpu == "" {
		cpu = "-"
	}
	return fmt.Sprintf("%s %s: %s, %d cores, Linux %s\n", what, name, cpu, m.Cores, m.Kernel)
}

// Count adds one to n if yes.
func Count(n *int, yes bool) {
	if yes {
		*n++
	}
}

// Keep writes NAME.json and NAME.txt into a folder, and prints the text.
func Keep(dir, name string, s *result.Study, text string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("make the folder for the results: %w", err)
	}
	fmt.Print(text)
	base := filepath.Join(dir, name)
	return errors.Join(Write(base+".json", s.JSON), os.WriteFile(base+".txt", []byte(text), 0o644))
}

// Write makes a file with the output of the function to.
func Write(path string, to func(io.Writer) error) error {
	f, err := os.Create(path)
	if err != nil {
		return fmt.Errorf("write the results: %w", err)
	}
	return errors.Join(to(f), f.Close())
}
