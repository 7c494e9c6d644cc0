package main

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"berth/tools/tierlist"
)

// TestTiers checks that a run without a tier leaves out the tests of all tiers, and that one of a tier takes only its own.
func TestTiers(t *testing.T) {
	enter(t)
	tiers := list(t, "# left\nlab net m/good TestSubs — a machine; stays: m/good.TestPlain\nmeasured m/other/good TestPlain — it measures\n")
	for _, tt := range []struct {
		tier, subject, last, not string
	}{
		{"", "", "1 passed, 0 failed, 0 skipped", "m/other/good"},
		{"lab", "net", "2 passed, 0 failed, 1 skipped", "m/other/good"},
		{"lab", "", "2 passed, 0 failed, 1 skipped", "m/other/good"},
		{"measured", "", "1 passed, 0 failed, 0 skipped", "m/good"},
	} {
		var out strings.Builder
		o := options{patterns: []string{"./good", "./other/good"}, tier: tt.tier, subject: tt.subject, atOnce: 1, every: time.Hour, packageClock: time.Hour}
		ok, err := o.main(t.Context(), files{tiers: tiers}, &out)
		if !ok || err != nil || !strings.HasSuffix(out.String(), "\n"+tt.last+"\n") || strings.Contains(out.String(), tt.not+"\n") {
			t.Errorf("tier %q, subject %q: %v, %v\n%s", tt.tier, tt.subject, ok, err, out.String())
		}
	}
	for _, o := range []options{{tier: "lab", subject: "none"}, {tier: "none"}} {
		o.patterns, o.atOnce, o.every = []string{"./good"}, 1, time.Hour
		if ok, err := o.main(t.Context(), files{tiers: tiers}, new(strings.Builder)); ok || err == nil || !strings.Contains(err.Error(), "no test is in tier") {
			t.Errorf("a tier without tests gives %v, %v", ok, err)
		}
	}
	if _, err := tierlist.Read(list(t, "lab m/good\n")); err == nil {
		t.Error("a line without a test is taken")
	}
}

// TestAgain checks which failed tests are looked at again, and what the run says then.
func TestAgain(t *testing.T) {
	enter(t)
	for _, tt := range []struct {
		pkg, rerun, last string
		ok               bool
		has              []string
		says             string
	}{
		// TestEveryOther fails the first time, passes with its package, and fails alone.
		{"flaky", "m/flaky\n", "2 passed, 1 failed, 0 skipped", false, []string{"FLAKY m/flaky TestOnce: ", "\nflaky: 1\n", "failed: m/flaky.TestEveryOther: ", "the first time"}, ""},
		{"finals", "m/finals\n", "0 passed, 1 failed, 0 skipped", false, []string{"failed: m/finals.TestFinal: "}, "final: data"},
		{"finals", "m/finals\n", "0 passed, 1 failed, 0 skipped", false, nil, "TempDir RemoveAll cleanup: unlinkat /tmp/TestX/001: device or resource busy"}, // a mount
		{"finals", "m/finals\n", "0 passed, 1 failed, 0 skipped", false, nil, "left behind: [link b12]"},
		{"bad", "m/other\n", "2 passed, 2 failed, 1 skipped", false, nil, ""},
		{"exits", "m/exits\n", "0 passed, 1 failed, 0 skipped", false, []string{"failed: m/exits: ended outside of a test"}, ""},
		{"panics", "m/panics\n", "0 passed, 1 failed, 0 skipped", false, []string{"failed: m/panics.TestPanic: panic: oh dear"}, ""},
		// TestFirst fails the first time, TestSecond the second time.
		{"beside", "m/beside\n", "2 passed, 0 failed, 0 skipped", true, []string{"FLAKY m/beside TestFirst: ", "FLAKY m/beside.TestSecond: passed, then failed", "\nflaky: 2\n"}, "the second time"},
		{"beside", "m/beside\n", "2 passed, 1 failed, 0 skipped", false, []string{"failed: m/beside: run again: TestSecond: "}, "WARNING: DATA RACE"},
	} {
		t.Setenv("M_STATE", t.TempDir()+"/")
		t.Setenv("M_SAYS", tt.says)
		var out strings.Builder
		o := options{patterns: []string{"./" + tt.pkg}, atOnce: 1, every: time.Hour, packageClock: time.Hour}
		ok, err := o.main(t.Context(), files{rerun: list(t, tt.rerun)}, &out)
		if ok != tt.ok || err != nil || !strings.HasSuffix(out.String(), "\n"+tt.last+"\n") {
			t.Errorf("%s: %v, %v\n%s", tt.pkg, ok, err, out.String())
		}
		for _, s := range tt.has {
			if !strings.Contains(out.String(), s) {
				t.Errorf("%s: no %q\n%s", tt.pkg, s, out.String())
			}
		}
	}
}

// TestFlakyIsGreen: one flaky test does not fail the run; more than mostFlaky of them do.
func TestFlakyIsGreen(t *testing.T) {
	for n, want := range map[int]bool{1: true, mostFlaky: true, mostFlaky + 1: false} {
		var out strings.Builder
		tally := newTally(&out)
		for i := range n {
			name := "Test" + strings.Repeat("I", i+1)
			tally.test(event{Action: "run", Package: "m/p", Test: name})
			tally.test(event{Action: "fail", Package: "m/p", Test: name})
			tally.flaked(unit{"m/p", name})
		}
		if ok := tally.report(nil); ok != want {
			t.Errorf("%d flaky tests: %v\n%s", n, ok, out.String())
		}
	}
}

// TestUnits: a script is a unit of its own, and so is any other top-level test.
func TestUnits(t *testing.T) {
	tally := newTally(new(strings.Builder))
	for _, name := range []string{"TestScripts", "TestScripts/run", "TestScripts/run/x", "TestOther", "TestOther/a"} {
		tally.test(event{Action: "run", Package: "m/p", Test: name})
		tally.test(event{Action: "fail", Package: "m/p", Test: name})
	}
	units := tally.again("m/p")
	if want := []unit{{"m/p", "TestScripts/run"}, {"m/p", "TestOther"}}; !slices.Equal(units, want) {
		t.Errorf("%v, want %v", units, want)
	}
	if p := units[0].pattern(); p != "^TestScripts$/^run$" {
		t.Error(p)
	}
	for _, u := range units {
		tally.flaked(u)
	}
	if !tally.report(nil) || tally.last != "2 passed, 0 failed, 0 skipped" {
		t.Error(tally.last)
	}
}

// TestClocks: a package that runs too long is ended with its goroutines printed; when the run's clock ends, what runs is killed, and both are counted.
func TestClocks(t *testing.T) {
	enter(t)
	var out strings.Builder
	o := options{patterns: []string{"./hangs"}, atOnce: 1, every: time.Hour, packageClock: 200 * time.Millisecond}
	ok, err := o.main(t.Context(), files{}, &out)
	if ok || err != nil || !strings.HasSuffix(out.String(), "\n1 passed, 1 failed, 0 skipped\n") || !strings.Contains(out.String(), "panic: test timed out") || !strings.Contains(out.String(), "goroutine") {
		t.Errorf("%v, %v\n%s", ok, err, out.String())
	}

	ctx, cancel := context.WithCancelCause(t.Context())
	defer cancel(nil)
	o.packageClock, o.patterns = time.Hour, []string{"./hangs", "./good"}
	o.alone = []string{"m/good"} // it never begins
	began := &watched{on: "...  m/hangs\n", do: func() { cancel(errors.New("the run's clock ended")) }}
	ok, err = o.main(ctx, files{}, began)
	if ok || err != nil || !strings.HasSuffix(began.String(), "failed, 0 skipped\n") ||
		!strings.Contains(began.String(), "killed: the run's clock ended") || !strings.Contains(began.String(), "FAIL m/good did not begin: the run's clock ended") {
		t.Errorf("%v, %v\n%s", ok, err, began.String())
	}
}

// watched calls do when a text is written.
type watched struct {
	strings.Builder
	on string
	do func()
}

func (w *watched) Write(p []byte) (int, error) {
	if string(p) == w.on {
		w.do()
	}
	return w.Builder.Write(p)
}
