// Package sample chooses which part of a long walk one run of the tests takes: of kill points, pages, random rounds, long tests.
//
// BERTH_WALK=N takes part N modulo Round, which tests log; BERTH_WALK=all takes every point and all rounds. Without it go test takes
// part 0, and make test (tools/testrun) that of the number of commits, so that Parts commits in a row take every point, and Round of them
// every point of the walks that are sparse.
package sample

import (
	"hash/fnv"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"testing"
)

// The part of a run, and how it is named.
const (
	Env   = "BERTH_WALK" // the environment variable that names the part
	Parts = 8
	Round = 4 * Parts
	whole = "all"
)

// Walk makes the choices of one test.
type Walk struct {
	*rand.Rand
	part int // one of so many points is taken
	from int // which of them
}

// Of returns the walk of a test, and logs how to repeat it. Tests with the same part and name make the same choices.
func Of(t testing.TB) Walk {
	t.Helper()
	w := Walk{part: Parts}
	asked := os.Getenv(Env)
	n, err := strconv.ParseUint(asked, 10, 32)
	switch {
	case asked == whole:
		w.part = 1
	case asked != "" && err != nil:
		t.Fatalf("%s=%s is neither a number nor %s", Env, asked, whole)
	case testing.Short():
		w.part = 50
	}
	n %= Round
	t.Logf("%s=%d", Env, n)
	name := fnv.New64()
	_, _ = name.Write([]byte(t.Name())) // never fails
	w.from = int(n + name.Sum64()%Parts)
	w.Rand = rand.New(rand.NewPCG(n, name.Sum64()))
	return w
}

// Sparse is half of the walk, for steps that take seconds each.
func (w Walk) Sparse() Walk {
	if w.part > 1 {
		w.part *= 2
	}
	return w
}

// Points returns the first of the numbers first, first+1 … that this run takes, and the distance to the next one.
func (w Walk) Points(first int) (begin, stride int) { return first + w.from%w.part, w.part }

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

// Rounds returns how many of n random rounds this run takes: at least two.
func (w Walk) Rounds(n int) int { return max(min(n, 2), (n+w.part-1)/w.part) }
