package main

import (
	"cmp"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"berth/test/sample"
)

// event is one line of go test -json (see go doc test2json) or, for a build, go build -json (go help buildjson).
type event struct {
	Action  string
	Package string
	Test    string
	Elapsed float64
	Output  string
}

// test is the state of one test.
type test struct {
	pkg, name string
	action    string // pass, fail, skip; "" while it runs
	output    []string
	seconds   float64
	children  int
	failedIn  int  // number of failed subtests, at any depth
	lost      bool // it did not end: its package ended, or was killed
	load      string
	paused    bool // it waits until other tests have ended: t.Parallel
}

// broken is a package that failed without a failed test.
type broken struct{ pkg, why string }

// tally counts the tests of a run. Several packages may report to it at once.
type tally struct {
	mu       sync.Mutex
	w        io.Writer
	tests    map[[2]string]*test
	order    []*test
	packages map[string][]string // output outside of tests, until the package ends
	broken   []broken
	running  map[string]time.Time
	took     map[string]float64 // seconds of each package that has ended
	cpu      map[string]float64 // seconds of CPU time of its processes, which have ended
	began    time.Time
	ticks    int64 // of the machine's CPUs when the run began, and
	stolen   int64 // how many of these the hypervisor had taken
	flaky    []string
	events   io.Writer // for the events as they come; nil: not kept
	failures []string  // failed tests, with the first lines of their output
	last     string    // the last line that report printed
}

func newTally(w io.Writer) *tally {
	all, stolen := ticks()
	return &tally{
		ticks: all, stolen: stolen,
		w: w, tests: map[[2]string]*test{}, packages: map[string][]string{},
		running: map[string]time.Time{}, took: map[string]float64{}, cpu: map[string]float64{}, began: time.Now(),
	}
}

// test processes an event of a test.
func (t *tally) test(e event) {
	key := [2]string{e.Package, e.Test}
	x := t.tests[key]
	if x == nil {
		x = &test{pkg: e.Package, name: e.Test}
		t.tests[key] = x
		t.order = append(t.order, x)
		if p := t.parent(x); p != nil {
			p.children++
		}
	}
	switch e.Action {
	case "output":
		x.output = append(x.output, e.Output)
	case "pause", "cont":
		x.paused = e.Action == "pause"
	case "pass", "fail", "skip":
		x.action, x.seconds = e.Action, e.Elapsed
	}
	if e.Action == "fail" {
		x.load = load()
		t.failed(x)
	}
	if e.Action == "pass" {
		x.output = nil
	}
}

// parent returns the test of which x is a subtest, or nil.
func (t *tally) parent(x *test) *test {
	i := strings.LastIndexByte(x.name, '/')
	if i < 0 {
		return nil
	}
	if p := t.tests[[2]string{x.pkg, x.name[:i]}]; p != nil {
		return p
	}
	// A subtest's own name may hold slashes: look further up.
	return t.parent(&test{pkg: x.pkg, name: x.name[:i]})
}

// failed prints a failed test and counts it in its parents.
func (t *tally) failed(x *test) {
	for p := t.parent(x); p != nil; p = t.parent(p) {
		p.failedIn++
	}
	fmt.Fprintf(t.w, "FAIL %s %s\n", x.pkg, x.name)
	x.output = slices.DeleteFunc(x.output, frame)
	for _, line := range x.output {
		fmt.Fprintf(t.w, "    %s", line)
	}
}

// frame reports whether go test itself wrote this line of output.
func frame(line string) bool {
	s := strings.TrimLeft(line, " ")
	for _, p := range []string{"=== RUN", "=== PAUSE", "=== CONT", "=== NAME", "--- PASS", "--- FAIL", "--- SKIP"} {
		if strings.HasPrefix(s, p) {
			return true
		}
	}
	return false
}

// slow returns the names and seconds of a package's top-level tests that took 30 s or more.
func (t *tally) slow(pkg string) string {
	text := ""
	for _, x := range t.order {
		if x.pkg == pkg && t.parent(x) == nil && x.seconds >= 30 {
			text += fmt.Sprintf(" %s %.0f", x.name, x.seconds)
		}
	}
	if text != "" {
		text = ":" + text
	}
	return text
}

// pkg processes an event of a package.
func (t *tally) pkg(e event) {
	switch e.Action {
	case "start":
		t.running[e.Package] = time.Now()
		fmt.Fprintf(t.w, "...  %s\n", e.Package)
	case "output":
		t.packages[e.Package] = append(t.packages[e.Package], e.Output)
	case "pass", "skip": // skip: all of its tests were
		t.over(e)
		fmt.Fprintf(t.w, "ok   %s %.1fs%s\n", e.Package, e.Elapsed, t.slow(e.Package))
		delete(t.packages, e.Package)
	case "fail":
		t.over(e)
		t.unfinished(e.Package)
		if t.failedTests(e.Package) == 0 {
			t.broken = append(t.broken, broken{e.Package, "ended outside of a test"})
		}
		fmt.Fprintf(t.w, "FAIL %s %.1fs%s\n", e.Package, e.Elapsed, t.slow(e.Package))
		for _, line := range t.packages[e.Package] {
			if line != "FAIL\n" {
				fmt.Fprintf(t.w, "    %s", line)
			}
		}
		delete(t.packages, e.Package)
	}
}

// unfinished marks the tests that were still running when their package ended as failed.
func (t *tally) unfinished(pkg string) {
	for _, x := range t.order {
		if x.pkg == pkg && x.action == "" {
			x.action, x.lost = "fail", true
			x.output = append(x.output, "did not finish\n")
			t.failed(x)
		}
	}
}

func (t *tally) failedTests(pkg string) int {
	n := 0
	for _, x := range t.order {
		if x.pkg == pkg && x.action == "fail" {
			n++
		}
	}
	return n
}

// skipped is a reason with the tests that were skipped for it.
type skipped struct {
	reason string
	tests  []string
	banned bool
}

// report prints the skips by reason, what failed, and the last line. It returns false if a test failed or a skip is not allowed.
func (t *tally) report(allowed *allowList) bool {
	var passed, failed int
	failed = len(t.broken)
	reasons := map[string]*skipped{}
	skips := 0
	var lost []*test
	for _, x := range t.order {
		switch {
		case x.action == "fail" && x.failedIn == 0:
			failed++
			lost = append(lost, x)
		case x.action == "skip":
			skips++
			r := reason(x.output)
			if reasons[r] == nil {
				reasons[r] = &skipped{reason: r, banned: !allowed.allows(r)}
			}
			reasons[r].tests = append(reasons[r].tests, strings.TrimPrefix(x.pkg, "berth/")+"."+x.name)
		case x.action == "pass" && x.children == 0:
			passed++
		}
	}
	banned := t.skips(reasons)
	t.summary(lost)
	t.last = fmt.Sprintf("%d passed, %d failed, %d skipped", passed, failed, skips)
	if len(t.flaky) > 0 {
		fmt.Fprintf(t.w, "flaky: %d\n", len(t.flaky))
	}
	if len(t.flaky) > mostFlaky {
		fmt.Fprintf(t.w, "more than %d flaky tests: the run failed\n", mostFlaky)
	}
	fmt.Fprintln(t.w, t.last)
	return failed == 0 && banned == 0 && len(t.flaky) <= mostFlaky
}

// Bounds of the failures that are printed again at the end of the run: characters of one, and how many of them in full.
const (
	longestWhy = 300
	mostWhy    = 40
)

// summary prints, at the end, what failed, in few lines: what shows a long run may show no more than its last ones.
func (t *tally) summary(lost []*test) {
	for _, b := range t.broken {
		t.failures = append(t.failures, fmt.Sprintf("failed: %s: %s", strings.TrimPrefix(b.pkg, "berth/"), b.why))
	}
	var rest []string
	for _, x := range lost {
		name := strings.TrimPrefix(x.pkg, "berth/") + "." + x.name
		if len(t.failures) >= mostWhy {
			rest = append(rest, name)
			continue
		}
		t.failures = append(t.failures, fmt.Sprintf("failed: %s: %.*s", name, longestWhy, why(x.output)))
	}
	if len(rest) > 0 {
		t.failures = append(t.failures, "failed, too: "+strings.Join(rest, " "))
	}
	t.failures = append(t.failures, t.flaky...)
	for _, line := range t.failures {
		fmt.Fprintln(t.w, line)
	}
}

// why returns what a failed test said first and last, or what its script did last. A line of the log looks like one of a failure.
func why(output []string) string {
	var said []string
	for _, line := range output {
		text := strings.TrimSpace(line)
		if strings.HasPrefix(text, "FAIL: ") {
			return text
		}
		if place.MatchString(line) && !strings.Contains(line, sample.Env+"=") || text == "did not finish" || strings.HasPrefix(text, "panic: ") {
			said = append(said, text)
		}
	}
	if len(said) > 3 {
		said = append(said[:1], said[len(said)-2:]...)
	}
	return strings.Join(said, " | ")
}

// skips prints each reason with its tests, and returns how many reasons are not allowed.
func (t *tally) skips(reasons map[string]*skipped) (banned int) {
	list := make([]*skipped, 0, len(reasons))
	for _, s := range reasons {
		list = append(list, s)
	}
	slices.SortFunc(list, func(a, b *skipped) int { return cmp.Compare(a.reason, b.reason) })
	for _, s := range list {
		word := "skipped"
		if s.banned {
			word = "skipped, NOT ALLOWED"
			banned++
		}
		fmt.Fprintf(t.w, "%s: %s\n", word, s.reason)
		for _, name := range s.tests {
			fmt.Fprintf(t.w, "    %s\n", name)
		}
	}
	return banned
}

// noReason stands for the reason of a t.SkipNow or of a t.Skip without text.
const noReason = "no reason given"

// place matches the file and line that t.Skip and t.Log put before a text.
var place = regexp.MustCompile(`^\s*[\w.-]+\.go:\d+: `)

// reason returns the reason of a skip: the last text that the test logged, with its continuation lines.
func reason(output []string) string {
	var text []string
	for _, line := range output {
		if frame(line) {
			continue
		}
		if place.MatchString(line) {
			text = text[:0]
			line = place.ReplaceAllString(line, "")
		}
		if line = strings.TrimSpace(line); line != "" {
			text = append(text, line)
		}
	}
	if len(text) == 0 {
		return noReason
	}
	return strings.Join(text, " ")
}
