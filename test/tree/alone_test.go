package tree

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestAlone checks the list of packages that make test runs one at a time, or first: each has tests, and each package whose tests build
// berth, to start nodes with it, is in the list.
func TestAlone(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(root, "test/alone"))
	if err != nil {
		t.Fatal(err)
	}
	listed := map[string]bool{}
	for line := range strings.Lines(string(text)) {
		if pkg, own := strings.CutPrefix(strings.TrimSpace(line), module+"/"); own {
			listed[strings.TrimSuffix(pkg, " first")] = false
		}
	}
	_, all := sources(t)
	for _, s := range all {
		if !s.test {
			continue
		}
		_, alone := listed[s.pkg]
		if alone {
			listed[s.pkg] = true
		}
		runs := strings.Contains(string(s.text), `"`+module+`/test/built"`) || strings.Contains(string(s.text), `"`+module+`/cmd/berth"`)
		if !alone && runs {
			t.Errorf("%s builds berth: package %s belongs in test/alone", s.path, s.pkg)
		}
	}
	for pkg, tests := range listed {
		if !tests {
			t.Errorf("test/alone names %s, which has no tests", pkg)
		}
	}
}
