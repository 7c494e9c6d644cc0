package main

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// entry is a test that is in a tier of its own, and not in the run of all.
type entry struct{ tier, subject, pkg, test string }

// readTiers reads the list of such tests, one a line:
//
//	TIER [SUBJECT] PACKAGE TEST — why; stays: PACKAGE.TEST, …
//
// TEST is a top-level test. What follows the dash is for people, and test/tree checks it.
func readTiers(name string) (all []entry, err error) {
	lines, err := readLines(name)
	if err != nil {
		return nil, err
	}
	for _, line := range lines {
		what, _, _ := strings.Cut(line, "—")
		switch f := strings.Fields(what); len(f) {
		case 3:
			all = append(all, entry{f[0], "", f[1], f[2]})
		case 4:
			all = append(all, entry{f[0], f[1], f[2], f[3]})
		default:
			return nil, fmt.Errorf("%s: %q is not TIER [SUBJECT] PACKAGE TEST", name, line)
		}
	}
	return all, nil
}

// topLevel finds a top-level test in a source file.
var topLevel = regexp.MustCompile(`(?m)^func (Test[A-Z0-9_]\w*)\(\w+ \*testing\.T\)`)

// choose returns those packages that have tests in this run, with the tests that the run takes or leaves out.
func (o options) choose(packs []pack) (chosen []pack, err error) {
	for _, p := range packs {
		var tests []string // that the list names for this run, or for another one
		for _, e := range o.tiers {
			if e.pkg == p.path && (o.tier == "" || e.tier == o.tier && (o.subject == "" || o.subject == "all" || e.subject == o.subject)) {
				tests = append(tests, e.test)
			}
		}
		pattern := ""
		if len(tests) > 0 {
			pattern = "^(" + strings.Join(tests, "|") + ")$"
		}
		switch {
		case o.tier != "":
			if len(tests) == 0 {
				continue
			}
			p.take = pattern
		case len(tests) > 0:
			has, err := p.tests()
			if err != nil {
				return nil, err
			}
			if !slices.ContainsFunc(has, func(name string) bool { return !slices.Contains(tests, name) }) {
				continue
			}
			p.leave = pattern
		}
		chosen = append(chosen, p)
	}
	if o.tier != "" && len(chosen) == 0 {
		return nil, fmt.Errorf("no test is in tier %s %s", o.tier, o.subject)
	}
	return chosen, nil
}

// tests lists the top-level tests in the source of a package.
func (p pack) tests() (names []string, err error) {
	sources, err := filepath.Glob(filepath.Join(p.dir, "*_test.go"))
	if err != nil {
		return nil, err
	}
	for _, name := range sources {
		text, err := os.ReadFile(name)
		if err != nil {
			return nil, err
		}
		for _, m := range topLevel.FindAllSubmatch(text, -1) {
			if name := string(m[1]); name != "TestMain" {
				names = append(names, name)
			}
		}
	}
	return names, nil
}

// readLines reads a list. Empty lines and lines that begin with # are left out.
func readLines(name string) (lines []string, err error) {
	text, err := os.ReadFile(name)
	if err != nil {
		return nil, err
	}
	for line := range strings.Lines(string(text)) {
		if line = strings.TrimSpace(line); line != "" && line[0] != '#' {
			lines = append(lines, line)
		}
	}
	return lines, nil
}

// create makes a file, and the folder that it is in.
func create(name string) (*os.File, error) {
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		return nil, err
	}
	return os.Create(name)
}
