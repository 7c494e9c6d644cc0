package main

import (
	"fmt"
	"os/exec"
	"path"
	"regexp"
	"slices"
	"strings"

	"berth/tools/tierlist"
)

// change is the difference from a commit.
type change struct {
	files    []string
	packages []string            // whose files differ, as berth/internal/network/link
	users    []string            // that import one of them, tests included
	program  bool                // a program of Berth links one of them
	tests    map[string][]string // new and changed top-level tests by package, of those that run in make test
}

// listed is a package as go list prints it.
type listed struct {
	path    string
	imports []string // its tests' included
	deps    []string
}

// changed compares the working tree with a commit.
func changed(base string) (*change, error) {
	names, err := git("diff", "--name-only", base)
	if err != nil {
		return nil, err
	}
	fresh, err := git("ls-files", "--others", "--exclude-standard")
	if err != nil {
		return nil, err
	}
	diff, err := git("diff", "-U0", base, "--", "*_test.go")
	if err != nil {
		return nil, err
	}
	all, err := list()
	if err != nil {
		return nil, err
	}
	tiers, err := tierlist.Read("test/tiers")
	if err != nil {
		return nil, err
	}
	c := &change{files: strings.Fields(names + "\n" + fresh), tests: map[string][]string{}}
	c.find(all)
	for pkg, tests := range testsOf(diff) {
		tests = slices.DeleteFunc(tests, func(name string) bool {
			return slices.ContainsFunc(tiers, func(e tierlist.Entry) bool { return e.Package == pkg && e.Test == name })
		})
		if len(tests) > 0 && slices.ContainsFunc(all, func(p listed) bool { return p.path == pkg }) {
			c.tests[pkg] = tests
		}
	}
	return c, nil
}

// find sets the packages of the changed files, and what uses them.
func (c *change) find(all []listed) {
	of := func(p listed) bool {
		dir := strings.TrimPrefix(p.path, "berth/")
		return slices.ContainsFunc(c.files, func(f string) bool {
			d := path.Dir(f)
			return d == dir || strings.HasPrefix(d+"/", dir+"/testdata/")
		})
	}
	for _, p := range all {
		if of(p) {
			c.packages = append(c.packages, p.path)
		}
	}
	for _, p := range all {
		has := func(i string) bool { return slices.Contains(c.packages, i) }
		if strings.HasPrefix(p.path, "berth/cmd/") && (has(p.path) || slices.ContainsFunc(p.deps, has)) {
			c.program = true
		}
		if !has(p.path) && slices.ContainsFunc(p.imports, has) {
			c.users = append(c.users, p.path)
		}
	}
}

// toTest returns the changed packages and their users. Packages that only start programs are left to the step for commands, unless they differ themselves.
func (c *change) toTest() []string {
	all := slices.Clone(c.packages)
	for _, p := range c.users {
		if !strings.HasPrefix(p, "berth/test/") {
			all = append(all, p)
		}
	}
	slices.Sort(all)
	return all
}

func (c *change) countTests() (n int) {
	for _, tests := range c.tests {
		n += len(tests)
	}
	return n
}

// hunk matches a file of a diff, a hunk with the function that it is in, and a new function.
var hunk = regexp.MustCompile(`(?m)^(?:\+\+\+ b/(\S+)|@@ [^@]* @@ func (Test\w+)\(|\+func (Test\w+)\(\w+ \*testing\.T)`)

// testsOf returns the top-level tests in which a diff without context has lines, by package.
func testsOf(diff string) map[string][]string {
	tests, pkg := map[string][]string{}, ""
	for _, m := range hunk.FindAllStringSubmatch(diff, -1) {
		switch name := m[2] + m[3]; {
		case m[1] != "":
			pkg = "berth/" + path.Dir(m[1])
		case name != "TestMain" && !slices.Contains(tests[pkg], name):
			tests[pkg] = append(tests[pkg], name)
		}
	}
	return tests
}

// list lists all packages of this module.
func list() (all []listed, err error) {
	const form = `{{.ImportPath}}|{{join .Imports " "}} {{join .TestImports " "}} {{join .XTestImports " "}}|{{join .Deps " "}}`
	out, err := exec.Command("go", "list", "-f", form, "./...").Output()
	if err != nil {
		return nil, fmt.Errorf("list the packages: %w", err)
	}
	for line := range strings.Lines(string(out)) {
		f := strings.Split(strings.TrimSpace(line), "|")
		all = append(all, listed{path: f[0], imports: strings.Fields(f[1]), deps: strings.Fields(f[2])})
	}
	return all, nil
}
