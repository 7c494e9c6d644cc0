package sample

import (
	"strconv"
	"testing"
)

func TestAll(t *testing.T) {
	t.Setenv(Env, whole)
	w := Of(t)
	if begin, stride := w.Points(3); begin != 3 || stride != 1 {
		t.Errorf("it takes every %d points from %d on", stride, begin)
	}
	if begin, stride := w.Sparse().Points(3); begin != 3 || stride != 1 {
		t.Errorf("sparse, it takes every %d points from %d on", stride, begin)
	}
	if n := w.Rounds(30); n != 30 {
		t.Errorf("%d of 30 rounds", n)
	}
}

// TestParts: the parts take each point once, and a part is the same each time.
func TestParts(t *testing.T) {
	begins := map[int]bool{}
	for part := range Parts {
		t.Setenv(Env, strconv.Itoa(part+5*Parts))
		begin, stride := Of(t).Points(1)
		again, _ := Of(t).Points(1)
		if begin < 1 || begin > stride || begin != again {
			t.Errorf("part %d: from %d, then %d, every %d points", part, begin, again, stride)
		}
		begins[begin] = true
	}
	if len(begins) != Parts && !testing.Short() {
		t.Errorf("the parts begin at %v", begins)
	}
	for n, want := range map[int]int{1: 1, 2: 2, 8: 2, 32: 4, 33: 5} {
		if got := Of(t).Rounds(n); !testing.Short() && got != want {
			t.Errorf("%d of %d rounds, want %d", got, n, want)
		}
	}
}

// TestRound: a round of parts takes each point of the sparsest walk.
func TestRound(t *testing.T) {
	begins := map[int]bool{}
	for part := range Round {
		t.Setenv(Env, strconv.Itoa(part))
		begin, _ := Of(t).Sparse().Sparse().Points(1)
		begins[begin] = true
	}
	if len(begins) != Round && !testing.Short() {
		t.Errorf("the parts begin at %v", begins)
	}
}

func TestSparse(t *testing.T) {
	t.Setenv(Env, "1")
	_, whole := Of(t).Points(1)
	if _, half := Of(t).Sparse().Points(1); half != 2*whole {
		t.Errorf("every %d points, and sparse every %d", whole, half)
	}
}
