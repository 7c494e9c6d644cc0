package bench

import (
	"context"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"berth/internal/bench/bed"
	"berth/internal/bench/result"
	"berth/internal/bench/stat"
)

// RunJobs measures fio jobs on the first disk of o in arms that exist already, the reference first, all as they are given: no
// pilot, no journal. The trials of an arm may change with what ran before them; that is reported.
func RunJobs(ctx context.Context, o bed.Options, about result.About, jobs []bed.Job, sides []bed.Side, progress func(bed.Progress)) (*result.Study, error) {
	if err := o.Complete(); err != nil {
		return nil, err
	}
	d := bed.DiskTable(o.Quick)
	about.Measures, about.Axis = d.Measures[:1], result.Axis{}
	d.About, d.Disk = about, jobs
	d.Make = func(ctx context.Context, b *bed.Bed, d *bed.Definition, o *bed.Options, _ bed.Lab) error {
		for _, s := range sides {
			if err := b.AddArm(s); err != nil {
				return err
			}
		}
		if err := b.LayOut(ctx, d, o); err != nil {
			return err
		}
		return b.DiskRows(d)
	}
	return measure(ctx, o, []bed.Definition{d}, bed.Lab{}, "", progress)
}

// Explain runs one row in the host, the host again, the node and all arms of the lineup, and says which ingredient carries the
// loss. Interrupted, it returns what it has, marked partial, beside the error.
func Explain(ctx context.Context, o bed.Options, row bed.Job, sides []bed.Side, l bed.Lineup, progress func(bed.Progress)) (*result.Study, error) {
	about := result.About{Name: "row", Title: row.Name, Question: "What does the node lose as it is?"}
	s, err := RunJobs(ctx, o, about, []bed.Job{row}, slices.Concat(sides, l.Arms), progress)
	if s == nil || len(s.Experiments) != 1 || len(s.Experiments[0].Rows) != 1 {
		return nil, err
	}
	s.Title = "Berth benchmark: which ingredient of a node costs what"
	e := &s.Experiments[0]
	e.Arms = e.Arms[:len(sides)] // the others only tell what ingredients cost
	tried := result.Experiment{
		About: result.About{
			Name: "suspects", Title: "What carries it", Question: "Which ingredient carries a loss?", Setting: "one ingredient at a time; worse: it carries a loss",
			Measures: e.Measures,
		},
		Arms:   []result.Arm{{Name: result.Without, Title: "without it"}, {Name: result.With, Title: "with it"}},
		Design: e.Design, Targets: e.Targets, Notes: l.Notes,
	}
	order := bed.Suspect{Name: "order", Tried: result.Tried{
		Kind: result.InOrder, What: "the later of the host's two trials in a block, against the earlier", With: "later", Without: "earlier",
	}}
	for _, x := range append(slices.Clone(l.Suspects), order) {
		tried.Rows = append(tried.Rows, result.Row{Name: x.Name, Tried: &x.Tried})
	}
	if need := stat.LeastPairs(len(tried.Rows)); e.Design.Pairs < need {
		tried.Notes = append(tried.Notes, fmt.Sprintf("with %d pairs nothing can be called different after the correction for %d lines: that takes %d pairs (--pairs, "+
			"--budget) or fewer lines (--only)", e.Design.Pairs, len(tried.Rows), need))
	}
	s.Experiments = append(s.Experiments, tried)
	s.Judge()
	for _, r := range s.Experiments[1].Rows {
		note := fmt.Sprintf("%s (%s): %s", r.Name, r.Tried.Kind, r.Tried.What)
		if r.Tried.Host != nil {
			note += fmt.Sprintf("; it costs the host itself %s %%", withInterval(r.Tried.Host))
		}
		s.Experiments[1].Notes = append(s.Experiments[1].Notes, note)
	}
	s.Experiments[0].Notes = append(s.Experiments[0].Notes, explanation(&s.Experiments[0].Rows[0], s.Experiments[1].Rows))
	return s, err
}

// explanation says in words what carries the loss.
func explanation(row *result.Row, tried []result.Row) string {
	var c, null *stat.Comparison
	for _, x := range row.Compared {
		switch x.Arm {
		case result.Node:
			c = x.Penalty
		case result.Null:
			null = x.Penalty
		}
	}
	if c == nil {
		return row.Name + ": nothing was measured that could be explained."
	}
	s := fmt.Sprintf("%s: the node loses %s %% of its throughput here: %s.", row.Name, withInterval(c), c.Verdict)
	if null != nil {
		s += fmt.Sprintf(" The host against itself: %s %%.", withInterval(null))
	}
	var carry, hide []string
	for _, r := range tried {
		for _, x := range r.Compared {
			text := fmt.Sprintf("%s (%s %%)", r.Name, withInterval(x.Penalty))
			switch x.Corrected {
			case stat.Worse:
				carry = append(carry, text)
			case stat.Better:
				hide = append(hide, text)
			case stat.Equivalent, stat.Undecided:
			}
		}
	}
	switch c.Verdict {
	case stat.Undecided:
		s += " Whether there is a loss, this run cannot tell."
	case stat.Equivalent, stat.Better:
		s += " There is no loss to explain in this run."
	case stat.Worse:
	}
	switch {
	case len(carry) > 0:
		s += " A loss is carried by " + strings.Join(carry, ", ") + "."
	case c.Verdict == stat.Worse:
		s += " No ingredient alone was shown to carry it."
	default:
		s += " No ingredient was shown to carry a loss by itself."
	}
	if len(hide) > 0 {
		s += " Faster with it than without: " + strings.Join(hide, ", ") + "."
	}
	return s
}

// withInterval prints a penalty: "+47.9 (+45.1..+50.2)".
func withInterval(c *stat.Comparison) string {
	if c.CI95Pct == nil {
		return signed(c.PenaltyPct) + " (few pairs)"
	}
	return fmt.Sprintf("%s (%s..%s)", signed(c.PenaltyPct), signed(c.CI95Pct[0]), signed(c.CI95Pct[1]))
}

// signed prints a percentage in at most 5 columns.
func signed(v float64) string {
	switch {
	case math.Abs(v) < 99.95:
		return fmt.Sprintf("%+.1f", v)
	case v < -999:
		return "<-999"
	}
	return fmt.Sprintf("%+.0f", v)
}

func millisOf(n int64) time.Duration { return time.Duration(n) * time.Millisecond }
