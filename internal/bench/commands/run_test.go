package commands

import (
	"os"
	"path/filepath"
	"testing"

	"berth/internal/bench"
	"berth/internal/bench/bed"
	"berth/internal/sys/refuse"
)

// TestJournalThatIsThere: a run that finds the trials of another one leaves them.
func TestJournalThatIsThere(t *testing.T) {
	out := outputs{dir: t.TempDir()}
	out.journal = filepath.Join(out.dir, "journal.jsonl")
	if err := os.WriteFile(out.journal, []byte("trials"), 0o600); err != nil {
		t.Fatal(err)
	}
	_, err := bench.Run(t.Context(), bed.Options{Names: []string{"fio-b"}, Dirs: []string{t.TempDir()}}, bed.Lab{}, out.journal, nil)
	if refuse.KindOf(err) != refuse.Busy {
		t.Fatal(err)
	}
	if err := out.failed(err, false); err == nil {
		t.Error("no error")
	}
	if text, err := os.ReadFile(out.journal); err != nil || string(text) != "trials" {
		t.Errorf("%q, %v", text, err)
	}
}
