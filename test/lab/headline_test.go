package lab_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"berth/test/lab"
	"berth/test/lab/headline"
)

// TestHeadline is the short form of `make headline`: protection removes at least three quarters of the p99 that
// unprotected nodes add to a service's reads. An emulated machine stalls at times, and one stall is the p99 of a trial:
// so the estimate over all rounds counts, and where it misses, it is measured again, three times at most.
func TestHeadline(t *testing.T) {
	if testing.Short() {
		t.Skip("needs a longer run")
	}
	scene, err := headline.Boot(t.Context(), headline.Options{
		Rounds: 3, Trial: 8 * time.Second, Progress: func(text string) { t.Log(text) },
	})
	if no, ok := errors.AsType[*lab.CannotError](err); ok {
		t.Skip("needs " + no.Why)
	}
	if err != nil {
		t.Fatal(err)
	}
	defer scene.Close()
	for try := 1; ; try++ {
		r, err := scene.Measure(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		var text strings.Builder
		if err := r.Text(&text); err != nil {
			t.Fatal(err)
		}
		t.Log("\n" + text.String())
		p99 := map[string]float64{}
		for _, a := range r.Arms {
			p99[a.Arm] = a.P99
			if a.Arm != headline.Alone && (a.Work.CPU < .1 || a.Work.Read == 0 || a.Work.Written == 0) {
				t.Errorf("%s: the nodes did nothing: %+v", a.Arm, a.Work)
			}
		}
		removed := (p99[headline.Unprotected] - p99[headline.Protected]) / (p99[headline.Unprotected] - p99[headline.Alone])
		t.Logf("protection removes %.0f %% of the p99 that nodes add", 100*removed)
		switch {
		case removed >= .75 && p99[headline.Unprotected] > p99[headline.Alone]:
			return
		case try < 3:
			continue
		}
		t.Fatalf("protection removes %.0f %%, not three quarters", 100*removed)
	}
}
