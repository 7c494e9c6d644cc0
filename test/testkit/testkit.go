// Package testkit has what tests of any package share and what knows nothing of Berth: it waits for events with one bound, checks for root, compares
// golden files, makes folders, starts the test program again, finds free ports and processes, judges a limit, and marks verdicts that are final.
package testkit

import (
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"strconv"
	"testing"
	"time"
)

// The environment variables that testkit reads.
const (
	Scale    = "BERTH_TEST_SCALE" // a number: how many times longer than on an idle machine tests wait for an event
	Measured = "BERTH_MEASURED"   // not empty: verdicts that depend on the machine's speed count (make test-measured)
)

// Bound is how long a test waits for an event that must come: a minute times BERTH_TEST_SCALE. It says nothing about how long
// the event takes; it ends a test that would otherwise wait for ever.
func Bound() time.Duration {
	scale, err := strconv.ParseFloat(os.Getenv(Scale), 64)
	if err != nil || scale <= 0 {
		scale = 1
	}
	return time.Duration(scale * float64(time.Minute))
}

// Happens waits until a condition holds, and reports whether it did within Bound. It looks often at first, and then every 20 ms.
func Happens(is func() bool) bool {
	end := time.Now().Add(Bound())
	for pause := time.Millisecond; ; pause = min(2*pause, 20*time.Millisecond) {
		if is() {
			return true
		}
		if time.Now().After(end) {
			return false
		}
		time.Sleep(pause)
	}
}

// Eventually waits until a condition holds, and ends the test if it does not within Bound. It returns how long that took. what
// completes the sentence "… did not happen".
func Eventually(t testing.TB, what string, is func() bool) time.Duration {
	t.Helper()
	began := time.Now()
	if !Happens(is) {
		t.Fatalf("%s: did not happen within %s", what, Bound())
	}
	return time.Since(began)
}

// Free returns n addresses with ports that nobody uses, nor will soon: they are on an address of the loopback that others
// hardly take, and all are held until the last is found, as the kernel may give the port of a closed listener again.
func Free(t testing.TB, n int) (all []string) {
	t.Helper()
	own := fmt.Sprintf("127.%d.%d.%d:0", 128+rand.IntN(120), rand.IntN(250), 1+rand.IntN(250))
	for range n {
		l, err := net.Listen("tcp", own)
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		all = append(all, l.Addr().String())
	}
	return all
}

// Measures says whether verdicts that depend on the speed of the machine count in this run.
func Measures() bool { return os.Getenv(Measured) != "" }

// Rate judges what passed a limit, both in the same unit. In each run it is at most 5 % above the limit, which no load on the
// machine can cause, and more than half of it. Where a run measures, it also lies within a tolerance, a fraction of the limit.
func Rate(t testing.TB, what string, got, limit, tolerance float64) {
	t.Helper()
	low, high := 0.5*limit, 1.05*limit
	if Measures() {
		low, high = (1-tolerance)*limit, (1+tolerance)*limit
	}
	t.Logf("%s: %.4g of %.4g", what, got, limit)
	if got < low || got > high {
		t.Errorf("%s: %.4g of %.4g, want %.4g to %.4g", what, got, limit, low, high)
	}
}

// FinalMark begins the line by which tools/testrun knows that a failure of this test is not looked at again.
const FinalMark = "final: "

// Final marks a test whose failure is final: what it looks at must never happen, not even once (lost data, two holders of one
// address, a right that nobody gave).
func Final(t testing.TB, why string) {
	t.Helper()
	t.Cleanup(func() {
		if t.Failed() {
			t.Log(FinalMark + why)
		}
	})
}
