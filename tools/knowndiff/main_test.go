package main

import (
	"strings"
	"testing"

	"berth/internal/bench/bed"
	"berth/tools/promise"
	"berth/tools/promise/faketest"
)

func TestKnownDifference(t *testing.T) {
	o := faketest.Options(t)
	o.MarginPct = 1
	k := known{runs: 20, truePct: 3, mechanism: "a fake", machine: "m1"}
	job := bed.Job{Name: "read 4K x1", Pattern: "randread", Block: 4096, Threads: 1}
	for _, c := range []struct {
		name          string
		slower, equal float64
		missed        int
	}{
		{"as promised", 970, 1000, 0},
		{"the difference is another", 900, 1000, 1},
		{"the equal arm differs", 970, 900, 2},
		{"no difference is there", 1000, 1000, 2},
	} {
		t.Run(c.name, func(t *testing.T) {
			const quiet = .002 // as that of a capped disk
			s, err := k.measure(t.Context(), o, job, faketest.Disk(1, 1000, quiet), faketest.Disk(3, c.equal, quiet), faketest.Disk(2, c.slower, quiet), func(int) {})
			if err != nil {
				t.Fatal(err)
			}
			n := k.count(s)
			missed := 0
			if err := promise.Missed(n.criteria()); err != nil {
				missed = len(strings.Split(err.Error(), "\n"))
			}
			if missed != c.missed || n.runs != 20 || s.Experiments[0].Rows[3].Compared[0].Penalty.Pairs != 12 {
				t.Errorf("%d criteria missed, want %d: %+v", missed, c.missed, n.criteria())
			}
			if text := k.text(n, s); !strings.HasPrefix(text, "machine m1: ") {
				t.Error(text)
			}
		})
	}
}
