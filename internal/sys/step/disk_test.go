package step

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// lasting is a step that makes a file that outlives the boot. It notes when it was asked to have it on the disk.
type lasting struct {
	fileStep
	asked int
}

// OnDisk implements Lasting.
func (l *lasting) OnDisk() error { l.asked++; return nil }

// TestSync: what steps made is on the disk when the journal that names it is, and only of a journal that lasts.
func TestSync(t *testing.T) {
	for _, lasts := range []bool{true, false} {
		j, dir := start(t)
		j.Lasts = lasts
		l := &lasting{fileStep: fileStep{Path: filepath.Join(dir, "a")}}
		if err := j.Do(t.Context(), l); err != nil {
			t.Fatal(err)
		}
		if l.asked != 0 {
			t.Error("each step is synced by itself")
		}
		for range 2 {
			if err := j.Sync(); err != nil {
				t.Fatal(err)
			}
		}
		if want := map[bool]int{true: 1}[lasts]; l.asked != want {
			t.Errorf("lasts %v: asked %d times, want %d", lasts, l.asked, want)
		}
	}
}

// TestLostRecords: zero bytes, as a power cut leaves them, end a journal, with all that is behind them. The next record is written there.
func TestLostRecords(t *testing.T) {
	j, dir := start(t)
	if err := j.Do(t.Context(), &fileStep{Path: filepath.Join(dir, "a")}); err != nil {
		t.Fatal(err)
	}
	f, err := os.OpenFile(j.path, os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteString(strings.Repeat("\x00", 5000) + "\n" + `{"phase":"removing"}` + "\n"); err != nil {
		t.Fatal(err)
	}
	f.Close()
	j = reopen(t, j)
	if j.Phase != Creating {
		t.Errorf("phase %s", j.Phase)
	}
	if err := j.SetPhase(Up); err != nil {
		t.Fatal(err)
	}
	j = reopen(t, j)
	if diff := cmp.Diff([]string{"a"}, paths(j)); diff != "" || j.Phase != Up {
		t.Errorf("phase %s, %s", j.Phase, diff)
	}
	if text, err := os.ReadFile(j.path); err != nil || strings.Contains(string(text), "\x00") {
		t.Errorf("zero bytes are left: %v", err)
	}
}

// TestEmptyJournal: a journal whose first record is lost gets no other one, by which it would be damaged.
func TestEmptyJournal(t *testing.T) {
	j, _ := start(t)
	if err := os.Truncate(j.path, 0); err != nil {
		t.Fatal(err)
	}
	j = reopen(t, j)
	if !j.Empty() {
		t.Error("it is not empty")
	}
	if err := j.SetPhase(Up); err == nil || !strings.Contains(err.Error(), j.path) {
		t.Errorf("written: %v", err)
	}
	if text, err := os.ReadFile(j.path); err != nil || len(text) > 0 {
		t.Errorf("it has %q, %v", text, err)
	}
}
