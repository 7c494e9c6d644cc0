package main

import (
	"cmp"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// unbuilt counts a package whose test program could not be built. The compiler's messages were printed before.
func (t *tally) unbuilt(pkg string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.broken = append(t.broken, broken{pkg, "does not build"})
	fmt.Fprintf(t.w, "FAIL %s does not build\n", pkg)
}

// over notes that a package has ended.
func (t *tally) over(e event) {
	delete(t.running, e.Package)
	t.took[e.Package] = e.Elapsed
}

// used notes the CPU time of a package's processes. Processes that outlive their parents, as nodes do, are not in it.
func (t *tally) used(pkg string, cpu time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.cpu[pkg] = cpu.Seconds()
}

// end counts a package as failed if its tests ended and did not say how. why says who ended them, if that is known.
func (t *tally) end(pkg, why string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	began, runs := t.running[pkg]
	if !runs {
		return
	}
	if why != "" {
		t.packages[pkg] = append(t.packages[pkg], "killed: "+why+"\n")
	}
	t.pkg(event{Action: "fail", Package: pkg, Elapsed: time.Since(began).Seconds()})
}

// never counts a package as failed that did not begin.
func (t *tally) never(pkg string, why error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.broken = append(t.broken, broken{pkg, fmt.Sprint("did not begin: ", why)})
	fmt.Fprintf(t.w, "FAIL %s did not begin: %v\n", pkg, why)
}

// tick says from time to time what is running, until stop is called.
func (t *tally) tick(every time.Duration, packages int) (stop func()) {
	ticker, done := time.NewTicker(every), make(chan struct{})
	go func() {
		for {
			select {
			case <-ticker.C:
				t.now(packages)
			case <-done:
				return
			}
		}
	}()
	return func() { ticker.Stop(); close(done) }
}

// now prints which tests are running, and for how long their packages have been.
func (t *tally) now(packages int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	var at []string
	for _, pkg := range slices.Sorted(maps.Keys(t.running)) {
		one := fmt.Sprintf("%s %.0fs", pkg, time.Since(t.running[pkg]).Seconds())
		if names := t.unended(pkg); len(names) > 0 {
			one += " (" + strings.Join(names, ", ") + ")"
		}
		at = append(at, one)
	}
	fmt.Fprintf(t.w, "...  %.0f min, %d of %d packages done; now %s\n", time.Since(t.began).Minutes(), len(t.took), packages, strings.Join(at, ", "))
}

// unended lists a package's top-level tests that have begun, have not ended and do not wait for others.
func (t *tally) unended(pkg string) (names []string) {
	for _, x := range t.order {
		if x.pkg == pkg && x.action == "" && !x.paused && !strings.Contains(x.name, "/") {
			names = append(names, x.name)
		}
	}
	return names
}

// keep writes what came out to a file; of a tier with the verdict of each top-level test.
func (t *tally) keep(file, commit, tier string) error {
	packages := slices.SortedFunc(maps.Keys(t.took), func(a, b string) int {
		return cmp.Or(-cmp.Compare(t.took[a], t.took[b]), strings.Compare(a, b))
	})
	var text strings.Builder
	fmt.Fprintf(&text, "%s, commit %s, %.1f minutes", t.began.UTC().Format(time.DateOnly), commit, time.Since(t.began).Minutes())
	if tier != "" {
		fmt.Fprintf(&text, ", tier %s, %s", tier, machine(t.ticks, t.stolen))
	}
	fmt.Fprint(&text, "\n\n")
	for _, p := range packages {
		fmt.Fprintf(&text, "%8.1f s %7.1f s CPU  %s%s\n", t.took[p], t.cpu[p], p, t.slow(p))
	}
	for _, x := range t.order {
		if tier != "" && t.parent(x) == nil {
			fmt.Fprintf(&text, "%s %.1f s %s.%s\n", x.action, x.seconds, strings.TrimPrefix(x.pkg, "berth/"), x.name)
		}
	}
	for _, line := range append([]string{""}, t.failures...) {
		fmt.Fprintln(&text, line)
	}
	if len(t.flaky) > 0 {
		fmt.Fprintf(&text, "flaky: %d\n", len(t.flaky))
	}
	fmt.Fprintln(&text, t.last)
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		return err
	}
	return os.WriteFile(file, []byte(text.String()), 0o644)
}
