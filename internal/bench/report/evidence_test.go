package report

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"berth/test/testkit"
)

// TestEvidencePrinted compares the text and the table of every JSON of docs/evidence with their recorded hashes: a change of
// the program must not change what is printed of kept results. After an intended change: go test ./internal/bench/report -update.
func TestEvidencePrinted(t *testing.T) {
	files, err := filepath.Glob("../../../docs/evidence/*.json*")
	if err != nil || len(files) < 10 {
		t.Fatalf("%d files, %v", len(files), err)
	}
	var b strings.Builder
	for _, path := range files {
		f, err := os.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		r, err := Read(f, "evidence")
		f.Close()
		if err != nil {
			t.Fatalf("%s: %v", path, err)
		}
		fmt.Fprintf(&b, "%s text %s\n", strings.TrimSuffix(filepath.Base(path), ".gz"), hashOf(t, r.Text))
		fmt.Fprintf(&b, "%s table %s\n", strings.TrimSuffix(filepath.Base(path), ".gz"), hashOf(t, r.CSV))
	}
	testkit.Golden(t, "testdata/evidence.sha256", b.String())
}

// hashOf returns the hash of what is written.
func hashOf(t *testing.T, write func(io.Writer) error) string {
	t.Helper()
	var b bytes.Buffer
	if err := write(&b); err != nil {
		t.Fatal(err)
	}
	return fmt.Sprintf("%x", sha256.Sum256(b.Bytes()))
}
