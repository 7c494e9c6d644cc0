// Package faketest has disks that need no time, for tests of the tools that measure promises.
package faketest

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"berth/internal/bench/bed"
	"berth/internal/bench/side"
	"berth/internal/sys/refuse"
)

// Disk answers as fio does, with so many requests a second and some noise.
func Disk(seed uint64, iops, noise float64) side.Arm {
	r := rand.New(rand.NewPCG(seed, 0))
	return func(_ context.Context, argv []string) ([]byte, error) {
		if slices.Contains(argv, "--version") {
			return []byte("fio-3.33\n"), nil
		}
		return fmt.Appendf(nil, `{"jobs": [{"error": 0, "mixed": {"iops": %f, "total_ios": 1000}}]}`, iops*math.Exp(noise*r.NormFloat64())), nil
	}
}

// Options are those of short runs in a folder of the test's own.
func Options(t *testing.T) bed.Options {
	t.Helper()
	o := bed.Options{Dirs: []string{t.TempDir()}, Size: 1 << 20, Quick: true, Pairs: 12, Seed: 1}
	if err := bed.CheckFolder(o.Dirs[0], 1<<20); refuse.KindOf(err) == refuse.Cannot {
		t.Skipf("no disk under the folder for temporary files: %v", err)
	}
	return o
}
