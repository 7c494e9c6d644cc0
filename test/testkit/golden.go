package testkit

import (
	"flag"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// update is the flag -update of test programs. What imports testkit and is no test has no such flag.
var update = func() *bool {
	if !testing.Testing() {
		return new(bool)
	}
	return flag.Bool("update", false, "write the golden files anew")
}()

// Golden compares a text with that of a golden file, mostly one of testdata. With -update it writes the file anew, and its folder.
func Golden(t testing.TB, path, got string) {
	t.Helper()
	if *update {
		Must(t, os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(got), 0o644)) //nolint:gosec // files of the tree
	}
	want, err := os.ReadFile(path)
	Must(t, err)
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("%s (-want +got; go test -update writes it anew, and git diff shows what changed):\n%s", path, diff)
	}
}
