package report

import (
	"fmt"
	"testing"

	"pgregory.net/rapid"

	"berth/internal/bench/result"
	"berth/internal/bench/stat"
)

// anyStudy draws a study with ordinary and odd results: no rows, no intervals, infinite penalties, rows with the same value
// on the axis, many arms, measures without values.
func anyStudy(t *rapid.T) *result.Study {
	s := &result.Study{MarginPct: rapid.Float64Range(0, 50).Draw(t, "margin"), Partial: rapid.Bool().Draw(t, "partial")}
	for i := range rapid.IntRange(0, 3).Draw(t, "experiments") {
		e := result.Experiment{About: result.About{Name: fmt.Sprintf("e-%d", i), Title: "An experiment", Axis: result.Axis{Label: "block size", Unit: "B"}}}
		for j, unit := range rapid.SliceOfN(rapid.SampledFrom([]string{"1/s", "B/s", "us", "ms", "s/GB", ""}), 0, 5).Draw(t, "units") {
			e.Measures = append(e.Measures, result.Measure{
				Name: fmt.Sprintf("m%d", j), Title: fmt.Sprintf("measure %d", j), Unit: unit,
				Compared: rapid.Bool().Draw(t, "compared"), LessIsBetter: rapid.Bool().Draw(t, "less is better"),
			})
		}
		for _, a := range []string{"host", "null", "node", "machine", "bridge", "macvlan"}[:rapid.IntRange(0, 6).Draw(t, "arms")] {
			e.Arms = append(e.Arms, result.Arm{Name: a})
		}
		for j := range rapid.IntRange(0, 25).Draw(t, "rows") {
			e.Rows = append(e.Rows, anyRow(t, &e, j))
		}
		s.Experiments = append(s.Experiments, e)
	}
	return s
}

func anyRow(t *rapid.T, e *result.Experiment, i int) result.Row {
	r := result.Row{Name: fmt.Sprintf("row %d %s", i, rapid.StringMatching(`[a-z ]{0,90}`).Draw(t, "row"))}
	if rapid.IntRange(0, 9).Draw(t, "placed") > 0 {
		v := float64(int64(512) << min(i, 30))
		r.Value = &v
	}
	for _, a := range e.Arms {
		m := result.ArmMedian{Arm: a.Name, Values: map[string]float64{}}
		for _, of := range e.Measures {
			if rapid.Bool().Draw(t, "measured") {
				m.Values[of.Name] = anyNumber(t)
			}
			c := result.Comparison{Arm: a.Name, Measure: of.Name, Corrected: anyVerdict(t)}
			if rapid.Bool().Draw(t, "judged") {
				c.Penalty = anyComparison(t)
			}
			r.Compared = append(r.Compared, c)
		}
		r.Arms = append(r.Arms, m)
	}
	for _, of := range e.Measures {
		if rapid.IntRange(0, 3).Draw(t, "published") == 0 {
			r.Published = append(r.Published, result.Figure{Measure: of.Name, Host: anyNumber(t), PenaltyPct: anyNumber(t), What: "LXC"})
		}
	}
	r.Flags = rapid.SliceOfN(rapid.SampledFrom([]result.Flag{result.Disturbed, result.Drifts, "new"}), 0, 2).Draw(t, "flags")
	return r
}

func anyVerdict(t *rapid.T) stat.Verdict {
	return rapid.SampledFrom([]stat.Verdict{"", stat.Equivalent, stat.Worse, stat.Better, stat.Undecided, "new"}).Draw(t, "verdict")
}

func anyNumber(t *rapid.T) float64 {
	if rapid.IntRange(0, 9).Draw(t, "odd") == 0 {
		return rapid.SampledFrom([]float64{0, -1, 1e300, -1e300, 1e-300, 5e-324}).Draw(t, "number")
	}
	return rapid.Float64Range(-100, 1e7).Draw(t, "number")
}

func anyComparison(t *rapid.T) *stat.Comparison {
	c := &stat.Comparison{Pairs: 6, PenaltyPct: anyNumber(t), Verdict: anyVerdict(t)}
	if rapid.Bool().Draw(t, "interval") {
		c.CI95Pct = &[2]float64{anyNumber(t), anyNumber(t)}
		could := anyNumber(t)
		c.Could = &could
	}
	return c
}

func TestAnyStudyIsShown(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		r, err := Of(anyStudy(rt), "report")
		if err != nil {
			rt.Fatal(err)
		}
		checkForms(t, r)
		if t.Failed() {
			rt.FailNow()
		}
	})
}
