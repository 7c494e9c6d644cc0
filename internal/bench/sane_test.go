package bench

import (
	"testing"

	"berth/internal/bench/bed"
)

func TestSane(t *testing.T) {
	inf, _ := bed.ReadDB12("1 inf\n")
	for _, c := range []struct {
		values map[string]float64
		ok     bool
	}{{map[string]float64{"a": 1}, true}, {map[string]float64{"a": 0}, true}, {map[string]float64{"a": -1}, false}, {inf, false}} {
		if err := sane(c.values); (err == nil) != c.ok {
			t.Errorf("%v: %v", c.values, err)
		}
	}
}

func FuzzReadJournal(f *testing.F) {
	f.Add(`{"start":{"format":"berth-bench-journal/2"}}` + "\n" + `{"trial":{"experiment":"x"}}` + "\n")
	f.Fuzz(func(_ *testing.T, text string) {
		if lines, err := readJournal([]byte(text)); err == nil {
			j := journal{lines: lines}
			_, s, _ := j.study()
			s.MarginPct = 5
			s.Judge()
		}
	})
}
