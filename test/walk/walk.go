// Package walk chooses which part of a long walk one run of the tests takes: of kill points, pages, random rounds, long tests.
//
// Without BERTH_WALK go test takes a random part, and make test that of the day. BERTH_WALK=N repeats the choices of a run, which its tests log;
// BERTH_WALK=all takes every point and all rounds.
package walk

import (
	"hash/fnv"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"sync"
	"testing"
)

const (
	env   = "BERTH_WALK"
	whole = "all"
)

// Walk makes the choices of one test.
type Walk struct {
	*rand.Rand
	part int // one of so many points is taken
	seed uint64
}

// seed is that of this process, unless the environment names one.
var seed = sync.OnceValue(func() uint64 { return uint64(rand.Uint32()) })

// Of returns the walk of a test, and logs how to repeat it. Tests with the same seed and name make the same choices.
func Of(t testing.TB) Walk {
	t.Helper()
	w := Walk{part: 8}
	asked := os.Getenv(env)
	n, err := strconv.ParseUint(asked, 10, 64)
	switch {
	case asked == whole:
		w.part = 1
	case asked != "" && err != nil:
		t.Fatalf("%s=%s is neither a number nor %s", env, asked, whole)
	case testing.Short():
		w.part = 50
	}
	if err != nil {
		n = seed()
	}
	t.Logf("%s=%d", env, n)
	w.seed = n
	name := fnv.New64()
	_, _ = name.Write([]byte(t.Name())) // never fails
	w.Rand = rand.New(rand.NewPCG(n, name.Sum64()))
	return w
}

// Sparse is half of the walk, for steps that take an emulated machine many seconds each.
func (w Walk) Sparse() Walk {
	if w.part > 1 {
		w.part *= 2
	}
	return w
}

// Points returns the first of the numbers first, first+1 … that this run takes, and the distance to the next one.
func (w Walk) Points(first int) (begin, stride int) { return first + w.IntN(w.part), w.part }

// Some returns n of all in their order: those that this run takes.
func Some[T any](w Walk, n int, all ...T) []T {
	if w.part == 1 || n >= len(all) {
		return all
	}
	chosen := w.Perm(len(all))[:n]
	slices.Sort(chosen)
	some := make([]T, n)
	for i, at := range chosen {
		some[i] = all[at]
	}
	return some
}

// Turn skips a test unless this run has it: of the tests that take long, a run has those whose turn it is of so many.
func Turn(t testing.TB, turn, of int) {
	t.Helper()
	w := Of(t)
	if w.part > 1 && int(w.seed%uint64(of)) != turn {
		t.Skipf("takes turns: one run of %d has it, and %s=%s", of, env, whole)
	}
}

// Rounds returns how many of n random rounds this run takes: at least two.
func (w Walk) Rounds(n int) int { return max(min(n, 2), (n+w.part-1)/w.part) }
