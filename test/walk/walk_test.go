package walk

import "testing"

func TestAll(t *testing.T) {
	t.Setenv(env, whole)
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

func TestSeed(t *testing.T) {
	begins := map[int]bool{}
	for _, seed := range []string{"1", "2", "3", "4", "5", "6", "7", "8"} {
		t.Setenv(env, seed)
		begin, stride := Of(t).Points(1)
		again, _ := Of(t).Points(1)
		if begin < 1 || begin > stride || begin != again {
			t.Errorf("seed %s: from %d, then %d, every %d points", seed, begin, again, stride)
		}
		begins[begin] = true
	}
	if len(begins) < 2 {
		t.Errorf("all seeds begin at %v", begins)
	}
	for n, want := range map[int]int{1: 1, 2: 2, 8: 2, 32: 4, 33: 5} {
		if got := Of(t).Rounds(n); !testing.Short() && got != want {
			t.Errorf("%d of %d rounds, want %d", got, n, want)
		}
	}
}

func TestSparse(t *testing.T) {
	t.Setenv(env, "1")
	_, whole := Of(t).Points(1)
	if _, half := Of(t).Sparse().Points(1); half != 2*whole {
		t.Errorf("every %d points, and sparse every %d", whole, half)
	}
}
