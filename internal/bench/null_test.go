package bench

import (
	"bytes"
	"context"
	"math"
	"strings"
	"testing"
)

func TestNullRows(t *testing.T) {
	o := small(t)
	rep, err := NullRows(t.Context(), 101, o, Arms{Host: fake(1, 1000), Null: fake(2, 1000)}, func(int, int) {})
	if err != nil {
		t.Fatal(err)
	}
	wantEmpty(t, o.Dir)
	if len(rep.Rows) != 101 || rep.Summary.Rows != 101 || rep.Rows[0].Seed == rep.Rows[4].Seed || len(rep.Rows[99].Host) != 12 || len(rep.Rows[99].Null) != 12 {
		t.Errorf("%+v", rep)
	}
	for i, h := range rep.Rows[5].Host { // what was kept gives the result again
		rep.Rows[5].Null[i] /= h
	}
	if got := penalty(math.Log(MedianOf(rep.Rows[5].Null))); math.Abs(got-rep.Rows[5].Result.PenaltyPct) > 2 {
		t.Errorf("the pairs kept say %v, the result %v", got, rep.Rows[5].Result.PenaltyPct)
	}
	if err := rep.Check(); err != nil {
		t.Errorf("%v: %+v", err, rep.Summary)
	}
	var b bytes.Buffer
	if err := rep.Text(&b); err != nil || !strings.HasPrefix(b.String(), "machine ") || !strings.Contains(b.String(), "\n101 rows") {
		t.Errorf("%v %s", err, b.String())
	}
}

// Arms that do differ must not pass for a null experiment.
func TestNullRowsThatDiffer(t *testing.T) {
	rep, err := NullRows(t.Context(), 4, small(t), Arms{Host: fake(1, 1000), Null: fake(2, 500)}, func(int, int) {})
	if err != nil {
		t.Fatal(err)
	}
	if rep.Check() == nil || rep.Summary.Called != 4 {
		t.Errorf("%+v", rep.Summary)
	}
}

func TestNullRowsInterrupted(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	rep, err := NullRows(ctx, 100, small(t), Arms{Host: fake(1, 1000), Null: fake(2, 1000)}, func(done, _ int) {
		if done == 8 {
			cancel()
		}
	})
	if err == nil || !rep.Partial || rep.Summary.Rows != 8 {
		t.Errorf("%v %+v", err, rep)
	}
}
