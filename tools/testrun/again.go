package main

import (
	"cmp"
	"context"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"berth/test/testkit"
)

// mostFlaky is how many tests a run may find flaky and still be green.
const mostFlaky = 3

// final matches the text of failures that are not run again: data races, panics, golden text, leftovers (also in t.TempDir,
// which then is busy: a mount), and failures that a test marks as final.
var final = regexp.MustCompile(`WARNING: DATA RACE|race detected|(?m)^panic: |stdout and .* differ|stderr and .* differ|-update|left behind: |` +
	`TempDir RemoveAll cleanup: .*busy|` + regexp.QuoteMeta(testkit.FinalMark))

// unit is a top-level test or one script: the smallest part that runs again.
type unit struct{ pkg, name string }

// of returns the unit of a test.
func of(x *test) unit {
	name, rest, _ := strings.Cut(x.name, "/")
	if name == "TestScripts" && rest != "" {
		script, _, _ := strings.Cut(rest, "/")
		name += "/" + script
	}
	return unit{x.pkg, name}
}

// pattern is the regular expression by which the unit alone runs.
func (u unit) pattern() string {
	parts := strings.Split(u.name, "/")
	for i, p := range parts {
		parts[i] = "^" + regexp.QuoteMeta(p) + "$"
	}
	return strings.Join(parts, "/")
}

// again looks at failed tests once more, in the packages that wait for other processes or for the kernel: once with the whole
// package, once alone. A test that passes both times is flaky: it is told and counted, but it does not fail the run. Each other failure is final,
// and what else fails in these runs is counted, too.
func (o options) again(ctx context.Context, packs []pack, t *tally) error {
	for _, p := range packs {
		units := t.again(p.path)
		if !slices.Contains(o.rerun, p.path) || len(units) == 0 || len(units) > mostFlaky || ctx.Err() != nil {
			continue
		}
		fmt.Fprintf(t.w, "again: %s with its whole package, and each alone: %v\n", p.path, units)
		whole := newTally(t.w)
		if err := o.test(ctx, p, whole); err != nil {
			return err
		}
		for _, u := range units {
			alone := newTally(t.w)
			one := p
			one.take = u.pattern()
			if err := o.test(ctx, one, alone); err != nil {
				return err
			}
			if whole.passed(u) && alone.passed(u) {
				t.flaked(u)
			}
			t.besides(units, alone)
		}
		t.besides(units, whole)
	}
	return nil
}

// again returns the failed units of a package, if all of its failures may be looked at again.
func (t *tally) again(pkg string) (units []unit) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if slices.ContainsFunc(t.broken, func(b broken) bool { return b.pkg == pkg }) {
		return nil
	}
	for _, x := range t.order {
		switch {
		case x.pkg != pkg || x.action != "fail":
		case x.lost || final.MatchString(strings.Join(x.output, "")):
			return nil
		case !slices.Contains(units, of(x)):
			units = append(units, of(x))
		}
	}
	// The parent of a failed script fails with it, and is no unit of its own.
	return slices.DeleteFunc(units, func(u unit) bool {
		return slices.ContainsFunc(units, func(v unit) bool { return strings.HasPrefix(v.name, u.name+"/") })
	})
}

// passed says whether a unit ran and passed.
func (t *tally) passed(u unit) bool {
	x := t.tests[[2]string{u.pkg, u.name}]
	return x != nil && x.action == "pass"
}

// besides counts the failures of a repeated run that are not among the tests for which it was repeated: they passed in the first run, so
// they are flaky, or final.
func (t *tally) besides(units []unit, again *tally) {
	for _, b := range again.broken {
		t.broken = append(t.broken, broken{b.pkg, "run again: " + b.why})
	}
	for _, x := range again.order {
		if x.action != "fail" || x.failedIn > 0 || slices.Contains(units, of(x)) {
			continue
		}
		name := strings.TrimPrefix(x.pkg, "berth/") + "." + x.name
		if x.lost || final.MatchString(strings.Join(x.output, "")) {
			t.broken = append(t.broken, broken{x.pkg, "run again: " + x.name + ": " + why(x.output)})
		} else {
			t.flaky = append(t.flaky, fmt.Sprintf("FLAKY %s: passed, then failed when its package ran again: %.*s", name, longestWhy, why(x.output)))
		}
	}
}

// flaked counts the failed tests of a unit as passed, and keeps what they said.
func (t *tally) flaked(u unit) {
	t.mu.Lock()
	defer t.mu.Unlock()
	said := ""
	for _, x := range t.order {
		if x.pkg != u.pkg || x.action != "fail" || of(x) != u && !strings.HasPrefix(u.name, x.name+"/") {
			continue
		}
		if of(x) == u {
			said = cmp.Or(said, x.load+"; "+why(x.output))
		}
		x.action = "pass"
	}
	fmt.Fprintf(t.w, "FLAKY %s %s: failed, then passed with its package and alone\n", u.pkg, u.name)
	t.flaky = append(t.flaky, fmt.Sprintf("FLAKY %s.%s: %.*s", strings.TrimPrefix(u.pkg, "berth/"), u.name, longestWhy, said))
}
