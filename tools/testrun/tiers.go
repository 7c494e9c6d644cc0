package main

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// topLevel finds a top-level test in a source file.
var topLevel = regexp.MustCompile(`(?m)^func (Test[A-Z0-9_]\w*)\(\w+ \*testing\.T\)`)

// choose returns those packages that have tests in this run, with the tests that the run takes or leaves out. A short run leaves out the packages
// of -alone that are no product code: their tests start programs.
func (o options) choose(packs []pack) (chosen []pack, err error) {
	for _, p := range packs {
		listed := slices.Contains(o.alone, p.path) || slices.Contains(o.first, p.path)
		if o.short && listed && (strings.HasPrefix(p.path, "berth/test/") || strings.HasPrefix(p.path, "berth/tools/")) {
			continue // it starts programs
		}
		var tests []string // that the list names for this run, or for another one
		for _, e := range o.tiers {
			if e.Package == p.path && (o.tier == "" || e.Tier == o.tier && (o.subject == "" || e.Subject == o.subject)) {
				tests = append(tests, e.Test)
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

// create makes a file, and the folder that it is in.
func create(name string) (*os.File, error) {
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		return nil, err
	}
	return os.Create(name)
}
