package main

import (
	"slices"
	"testing"
	"time"
)

// TestDraw checks that the count is exact, that times rise within the run, and that runs of one seed that skip each other's
// ranges share none.
func TestDraw(t *testing.T) {
	o := options{reads: 500, length: 10 * time.Second, seed: 7}
	first, moments, err := o.draw(2000)
	if err != nil || len(first) != 500 || len(moments) != 500 {
		t.Fatalf("%d ranges, %d moments, %v", len(first), len(moments), err)
	}
	if !slices.IsSorted(moments) || moments[0] < 0 || moments[499] >= o.length {
		t.Errorf("moments from %v to %v", moments[0], moments[499])
	}
	o.skip = 500
	second, later, err := o.draw(2000)
	if err != nil {
		t.Fatal(err)
	}
	both := slices.Sorted(slices.Values(slices.Concat(first, second)))
	if len(slices.Compact(both)) != 1000 {
		t.Error("a range is read twice")
	}
	if slices.Equal(moments, later) {
		t.Error("both runs read at the same moments")
	}
	o.skip = 1600
	if _, _, err := o.draw(2000); err == nil {
		t.Error("2,100 of 2,000 ranges were promised")
	}
}
