package tree

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"berth/tools/tierlist"
)

// TestUnreached checks test/unreached: the packages, files and functions that it names are there, each once, and the tests and scripts that reach
// them exist.
func TestUnreached(t *testing.T) {
	reasons, err := tierlist.Reasons(filepath.Join(root, "test/unreached"))
	if err != nil {
		t.Fatal(err)
	}
	have, named := topLevelTests(t), map[string]bool{}
	for _, r := range reasons {
		for _, place := range r.Places {
			if named[place] {
				t.Errorf("test/unreached names %s twice", place)
			}
			if named[place] = true; !isPlace(place) {
				t.Errorf("test/unreached names %s, which is no package, file or function below internal/", place)
			}
		}
		for _, test := range r.Tests {
			name, isScript := strings.CutPrefix(test, "test/script ")
			_, err := os.Stat(filepath.Join(root, "test/script/testdata", name+".txtar"))
			if !have[strings.TrimPrefix(test, module+"/")] && (!isScript || err != nil) {
				t.Errorf("test/unreached: %s, which reaches %s, is not there", test, strings.Join(r.Places, " "))
			}
		}
	}
}

// isPlace reports whether there is such a package (its folder and a slash), a file, or a function of a file.
func isPlace(place string) bool {
	file, function, ofFile := strings.Cut(place, ":")
	if !ofFile && strings.HasSuffix(place, "/") {
		here, err := filepath.Glob(filepath.Join(root, "internal", place, "*.go"))
		return err == nil && len(here) > 0
	}
	text, err := os.ReadFile(filepath.Join(root, "internal", file))
	if err != nil || !strings.HasSuffix(file, ".go") {
		return false
	}
	return !ofFile || tierlist.Declares(text, function)
}
