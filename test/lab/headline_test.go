package lab_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"berth/test/lab"
	"berth/test/lab/headline"
)

// TestHeadline is the short form of `make headline`: six rounds, the fewest that give an interval, measured once. The p50 of the
// protected service must be at most a quarter of the unprotected one by the upper end of its 95 % interval. The p99 is judged by
// the lower end only, because one stall of the emulated machine widens the interval of six rounds too much.
func TestHeadline(t *testing.T) {
	if testing.Short() {
		t.Skip("needs a longer run")
	}
	scene, err := headline.Boot(t.Context(), headline.Options{
		Rounds: 6, Reads: 200, Seconds: 4, Arms: []string{headline.Unprotected, headline.Protected},
		Progress: func(text string) { t.Log(text) },
	})
	if no, ok := errors.AsType[*lab.CannotError](err); ok {
		t.Skip("needs " + no.Why)
	}
	if err != nil {
		t.Fatal(err)
	}
	defer scene.Close()
	others := lab.Others()
	r, err := scene.Measure(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	var text strings.Builder
	if err := r.Text(&text); err != nil {
		t.Fatal(err)
	}
	t.Log("\n" + text.String())
	for _, a := range r.Arms {
		if a.Work.CPU < .1 || a.Work.Read == 0 || a.Work.Written == 0 {
			t.Errorf("%s: the nodes did nothing: %+v", a.Arm, a.Work)
		}
	}
	has := map[string]string{
		headline.Unprotected: "iocost 0, cpu.weight 100 idle 0, io.weight 100, bfq 100, io.max ",
		headline.Protected:   "idle 1, io.weight 1, bfq 1, io.max ",
	}
	for _, one := range r.Trials {
		if !strings.Contains(one.State, has[one.Arm]) {
			t.Errorf("%s: the machine has %q, want %q", one.Arm, one.State, has[one.Arm])
		}
	}
	crowd, err := others()
	if err != nil {
		t.Fatal(err)
	}
	var wrong []string
	most := map[string]float64{"p50": .25, "p99": .5}
	end := map[string]int{"p50": 1, "p99": 0} // end of the interval
	for _, c := range r.Compared {
		limit, judged := most[c.What]
		if judged && (c.CI == nil || c.CI[end[c.What]] > limit) {
			wrong = append(wrong, fmt.Sprintf("%s of the protected service to that of the unprotected one: %.2f, by its interval %v at most %.2f was promised", c.What, c.Ratio, c.CI, limit))
		}
		delete(most, c.What)
	}
	if len(most) > 0 {
		t.Errorf("not compared: %v", most)
	}
	judged(t, spare{others: crowd}, wrong)
}
