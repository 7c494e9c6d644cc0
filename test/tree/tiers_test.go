package tree

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"berth/tools/tierlist"
)

// subjects are those of the tier lab.
var subjects = []string{"net", "storage", "limits", "site"}

// tierLine is a line of test/tiers.
var tierLine = regexp.MustCompile(`^(lab (?P<subject>\w+)|measured|smoke) +(?P<pkg>\S+) +(?P<test>Test\w+) — (?P<why>[^;]+); stays: (?P<stays>.+)$`)

// entries returns the lines of a list below test/ that are neither empty nor comments.
func entries(t *testing.T, name string) []string {
	t.Helper()
	lines, err := tierlist.Lines(filepath.Join(root, "test", name))
	if err != nil {
		t.Fatal(err)
	}
	return lines
}

// topLevelTests returns the names of all top-level tests, each as "internal/network/link.TestBridge".
func topLevelTests(t *testing.T) map[string]bool {
	t.Helper()
	found := map[string]bool{}
	pattern := regexp.MustCompile(`(?m)^func (Test\w+)\(\w+ \*testing\.T\)`)
	_, all := sources(t)
	for _, s := range all {
		if !s.test {
			continue
		}
		for _, m := range pattern.FindAllSubmatch(s.text, -1) {
			found[s.pkg+"."+string(m[1])] = true
		}
	}
	return found
}

// TestTiers checks test/tiers: each line has its form, names a test that exists, once, and the tests of make test, or of CI's smoke, that
// stay for it exist and have not left themselves.
func TestTiers(t *testing.T) {
	have := topLevelTests(t)
	left, stays := map[string]bool{}, map[string][]string{}
	for _, line := range entries(t, "tiers") {
		m := tierLine.FindStringSubmatch(line)
		if m == nil {
			t.Errorf("test/tiers: %q is not TIER [SUBJECT] PACKAGE TEST — why; stays: PACKAGE.TEST, …", line)
			continue
		}
		part := func(name string) string { return m[tierLine.SubexpIndex(name)] }
		name := strings.TrimPrefix(part("pkg"), module+"/") + "." + part("test")
		if s := part("subject"); s != "" && !slices.Contains(subjects, s) {
			t.Errorf("test/tiers: %s has subject %s, which is none of %v", name, s, subjects)
		}
		if !have[name] || left[name] {
			t.Errorf("test/tiers names %s, which is not there, or is named before", name)
		}
		left[name] = !strings.HasPrefix(line, "smoke")
		for stay := range strings.SplitSeq(part("stays"), ",") {
			stays[name] = append(stays[name], strings.TrimPrefix(strings.TrimSpace(stay), module+"/"))
		}
	}
	for name, those := range stays {
		for _, stay := range those {
			if !have[stay] || left[stay] {
				t.Errorf("test/tiers: %s, which stays for %s, is not there, or left too", stay, name)
			}
		}
	}
}

// TestRerun checks that test/rerun names packages that have tests, each once.
func TestRerun(t *testing.T) {
	with, seen := map[string]bool{}, map[string]bool{}
	for name := range topLevelTests(t) {
		pkg, _, _ := strings.Cut(name, ".")
		with[module+"/"+pkg] = true
	}
	for _, pkg := range entries(t, "rerun") {
		if !with[pkg] || seen[pkg] {
			t.Errorf("test/rerun names %s, which has no tests, or twice", pkg)
		}
		seen[pkg] = true
	}
}

// TestFlaky checks test/flaky: what is known to be flaky is mended soon, and is not much.
func TestFlaky(t *testing.T) {
	lines := entries(t, "flaky")
	if len(lines) > 10 {
		t.Errorf("test/flaky has %d lines, ten at most are kept", len(lines))
	}
	if len(lines) == 0 {
		return
	}
	out, err := exec.Command("git", "log", "-1", "--format=%cs").Output()
	if err != nil {
		t.Skipf("no git history: %v", err)
	}
	last, err := time.Parse(time.DateOnly, strings.TrimSpace(string(out)))
	if err != nil {
		t.Fatal(err)
	}
	have := topLevelTests(t)
	for _, line := range lines {
		date, rest, _ := strings.Cut(line, " ")
		name, why, _ := strings.Cut(rest, " — ")
		noted, err := time.Parse(time.DateOnly, date)
		switch {
		case err != nil || why == "" || !have[name]:
			t.Errorf("test/flaky: %q is not DATE PACKAGE.TEST — what happens, of a test that is there", line)
		case last.Sub(noted) > 14*24*time.Hour:
			t.Errorf("test/flaky: %q is older than 14 days: mend it", line)
		}
	}
}

// TestKeptResults checks what make test-lab and make test-measured left in docs/evidence: it is at most 30 commits old if anything in internal has
// changed since, and each test that failed has a line that explains it: "explained: PACKAGE.TEST — …".
func TestKeptResults(t *testing.T) {
	git := func(words ...string) (string, error) {
		out, err := exec.Command("git", append([]string{"-C", root}, words...)...).Output()
		return strings.TrimSpace(string(out)), err
	}
	if shallow, err := git("rev-parse", "--is-shallow-repository"); err != nil || shallow == "true" {
		t.Skip("no git history")
	}
	for _, name := range []string{"test-lab.txt", "test-measured.txt"} {
		text, err := os.ReadFile(filepath.Join(root, "docs/evidence", name))
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range regexp.MustCompile(`(?m)^[\d-]+, commit ([0-9a-f]{12})`).FindAllStringSubmatch(string(text), -1) {
			count, err := git("rev-list", "--count", m[1]+"..HEAD")
			if err != nil {
				t.Errorf("%s is of commit %s, which is not in the history: %v", name, m[1], err)
				continue
			}
			if n, _ := strconv.Atoi(count); n <= 30 {
				continue
			}
			if _, err := git("diff", "--quiet", m[1], "HEAD", "--", "internal"); err != nil {
				t.Errorf("%s is of commit %s, %s commits ago, and internal has changed since: run make test-lab, or make test-measured, again", name, m[1], count)
			}
		}
		for _, m := range regexp.MustCompile(`(?m)^failed: ([^:]+): `).FindAllStringSubmatch(string(text), -1) {
			if !strings.Contains(string(text), "\nexplained: "+m[1]+" — ") {
				t.Errorf("%s says that %s failed, and no line explains it", name, m[1])
			}
		}
	}
}
