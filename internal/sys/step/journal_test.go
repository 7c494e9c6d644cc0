package step

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

// fileStep is a step that makes a file.
type fileStep struct {
	Path string `json:"path"`
	Made bool   `json:"made,omitempty"`

	fail error
}

func (f *fileStep) Kind() string   { return "test.file" }
func (f *fileStep) String() string { return f.Path }
func (f *fileStep) Do(context.Context) error {
	if f.fail != nil {
		return f.fail
	}
	f.Made = true
	return os.WriteFile(f.Path, nil, 0o600)
}

func (f *fileStep) Verify(context.Context) error {
	_, err := os.Stat(f.Path)
	return err
}

func (f *fileStep) Undo(context.Context) error {
	if err := os.Remove(f.Path); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

func kinds() Kinds { return Kinds{"test.file": func() Step { return &fileStep{} }} }

func start(t *testing.T) (*Journal, string) {
	t.Helper()
	dir := t.TempDir()
	j, err := Create(filepath.Join(dir, "journal"), "n1", "boot-1")
	if err != nil {
		t.Fatal(err)
	}
	return j, dir
}

func reopen(t *testing.T, j *Journal) *Journal {
	t.Helper()
	again, err := Open(j.path, kinds())
	if err != nil {
		t.Fatal(err)
	}
	return again
}

func paths(j *Journal) []string {
	var all []string
	for _, s := range j.Steps() {
		all = append(all, filepath.Base(s.(*fileStep).Path))
	}
	return all
}

func TestJournalIsReadBackAsItWasWritten(t *testing.T) {
	j, dir := start(t)
	for _, name := range []string{"a", "b"} {
		if err := j.Do(t.Context(), &fileStep{Path: filepath.Join(dir, name)}); err != nil {
			t.Fatal(err)
		}
	}
	if err := j.SetPhase(Up); err != nil {
		t.Fatal(err)
	}
	got := reopen(t, j)
	if got.Node != "n1" || got.Boot != "boot-1" || got.Phase != Up {
		t.Errorf("read back node %q, boot %q, phase %q", got.Node, got.Boot, got.Phase)
	}
	if diff := cmp.Diff([]string{"a", "b"}, paths(got)); diff != "" {
		t.Error(diff)
	}
	if !got.Steps()[0].(*fileStep).Made {
		t.Error("what Do filled in was not journalled")
	}
	if err := got.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	if left, _ := os.ReadDir(dir); len(left) != 0 {
		t.Errorf("left behind: %v", left)
	}
}

func TestAFailedStepIsUndoneToo(t *testing.T) {
	j, dir := start(t)
	boom := errors.New("boom")
	if err := j.Do(t.Context(), &fileStep{Path: filepath.Join(dir, "a"), fail: boom}); !errors.Is(err, boom) {
		t.Fatalf("got %v", err)
	}
	if diff := cmp.Diff([]string{"a"}, paths(reopen(t, j))); diff != "" {
		t.Error(diff)
	}
}

func TestSetIsKeptOrTakenBack(t *testing.T) {
	for _, end := range []bool{true, false} {
		t.Run(fmt.Sprint(end), func(t *testing.T) {
			j, dir := start(t)
			do := func(name string) {
				t.Helper()
				if err := j.Do(t.Context(), &fileStep{Path: filepath.Join(dir, name)}); err != nil {
					t.Fatal(err)
				}
			}
			do("before")
			if err := j.BeginSet("spec-2"); err != nil {
				t.Fatal(err)
			}
			do("changed")
			j = reopen(t, j)
			if j.Set == nil || j.Set.Spec != "spec-2" {
				t.Fatalf("the set under way is not read back: %+v", j.Set)
			}
			var err error
			if end {
				err = j.EndSet()
			} else {
				err = j.UndoSet(t.Context())
			}
			if err != nil {
				t.Fatal(err)
			}
			if _, err := os.Stat(filepath.Join(dir, "changed")); (err == nil) != end {
				t.Errorf("after the set: %v", err)
			}
			if diff := cmp.Diff([]string{"before"}, paths(reopen(t, j))); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// A journal that is cut off anywhere, as by a kill or a full disk, is read up to its last whole record and can be continued
// from there.
func TestTornTail(t *testing.T) {
	j, dir := start(t)
	for _, name := range []string{"a", "b", "c"} {
		if err := j.Do(t.Context(), &fileStep{Path: filepath.Join(dir, name)}); err != nil {
			t.Fatal(err)
		}
	}
	whole, err := os.ReadFile(j.path)
	if err != nil {
		t.Fatal(err)
	}
	rapid.Check(t, func(t *rapid.T) {
		cut := rapid.IntRange(0, len(whole)).Draw(t, "cut")
		if err := os.WriteFile(j.path, whole[:cut], 0o600); err != nil {
			t.Fatal(err)
		}
		torn, err := Open(j.path, kinds())
		if err != nil {
			t.Fatalf("cut at %d: %v", cut, err)
		}
		if want := strings.Count(string(whole[:cut]), `"begin"`); len(torn.Steps()) > want {
			t.Fatalf("cut at %d: %d steps of %d begun", cut, len(torn.Steps()), want)
		}
		if torn.Node == "" {
			return // not even the first record is whole
		}
		if err := torn.Do(context.Background(), &fileStep{Path: filepath.Join(dir, "d")}); err != nil {
			t.Fatal(err)
		}
		again, err := Open(j.path, kinds())
		if err != nil {
			t.Fatalf("cut at %d and written on: %v", cut, err)
		}
		if diff := cmp.Diff(paths(torn), paths(again)); diff != "" {
			t.Fatal(diff)
		}
	})
}

// A journal does not grow with the number of live changes, keeps the records before them, and works on after they are dropped.
func TestManySets(t *testing.T) {
	j, dir := start(t)
	do := func(name string) {
		t.Helper()
		if err := j.Do(t.Context(), &fileStep{Path: filepath.Join(dir, name)}); err != nil {
			t.Fatal(err)
		}
	}
	do("before")
	if err := j.SetPhase(Up); err != nil {
		t.Fatal(err)
	}
	largest := int64(0)
	for i := range 1000 {
		if err := j.BeginSet("spec"); err != nil {
			t.Fatal(err)
		}
		do(fmt.Sprint("changed ", i))
		if i%7 == 0 {
			j = reopen(t, j)
		}
		if err := j.EndSet(); err != nil {
			t.Fatal(err)
		}
		if i%5 == 0 {
			j = reopen(t, j)
		}
		fi, err := os.Stat(j.path)
		if err != nil {
			t.Fatal(err)
		}
		largest = max(largest, fi.Size())
		if i == 500 { // records of other steps are kept
			do("between")
		}
	}
	if largest > 3*longest {
		t.Errorf("the journal grew to %d bytes", largest)
	}
	j = reopen(t, j)
	if diff := cmp.Diff([]string{"before", "between"}, paths(j)); diff != "" || j.Phase != Up {
		t.Errorf("phase %s, %s", j.Phase, diff)
	}
	if err := j.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(dir, "before")); err == nil {
		t.Error("what was done before the sets was not undone")
	}
}

func TestOpenSaysWhatIsWrong(t *testing.T) {
	header := `{"berth":3,"boot":"b","node":"n"}` + "\n"
	for _, tc := range []struct{ name, text, want string }{
		{"no JSON", "hello\n", "line 1: "},
		{"another format", `{"berth":4}` + "\n", "line 1: format 4, this berth reads 3"},
		{"unknown step", header + `{"begin":0,"kind":"warp.drive","step":{}}` + "\n", `line 2: unknown step "warp.drive"`},
		{"out of order", header + `{"begin":7,"kind":"test.file","step":{}}` + "\n", "line 2: step 7 begun as number 0"},
		{"done unbegun", header + `{"done":0,"step":{}}` + "\n", "line 2: no step 0 was begun"},
		{"empty record", header + "{}\n", "line 2: a record that says nothing"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "journal")
			if err := os.WriteFile(path, []byte(tc.text), 0o600); err != nil {
				t.Fatal(err)
			}
			_, err := Open(path, kinds())
			if err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("got %v, want %q in it", err, tc.want)
			}
		})
	}
}

func TestFullDisk(t *testing.T) {
	if _, err := os.Stat("/dev/full"); err != nil {
		t.Skip("no /dev/full on this host")
	}
	j, dir := start(t)
	if err := j.Do(t.Context(), &fileStep{Path: filepath.Join(dir, "a")}); err != nil {
		t.Fatal(err)
	}
	real := j.path
	j.path = "/dev/full"
	next := filepath.Join(dir, "b")
	if err := j.Do(t.Context(), &fileStep{Path: next}); err == nil {
		t.Fatal("a step went on without its record")
	}
	if _, err := os.Stat(next); err == nil {
		t.Error("the host was changed before the record was written")
	}
	if err := j.Undo(t.Context(), func(Step) bool { return true }); err != nil {
		t.Errorf("undo on a full disk: %v", err)
	}
	if _, err := os.Stat(filepath.Join(dir, "a")); err == nil {
		t.Error("nothing was undone")
	}
	j.path = real
}

func FuzzJournal(f *testing.F) {
	f.Add([]byte(`{"berth":3,"boot":"b","node":"n"}` + "\n" + `{"phase":"creating"}` + "\n" +
		`{"begin":0,"kind":"test.file","step":{"path":"/x"}}` + "\n" + `{"done":0,"step":{"path":"/x","made":true}}` + "\n" +
		`{"set":{"first":1,"spec":"s"}}` + "\n" + `{"set_end":true}` + "\n" + `{"undone":0}` + "\n"))
	f.Add([]byte(`{"berth":3}` + "\n" + `{"set":{"first":-5}}` + "\n" + `{"set_end":true}` + "\n"))
	f.Fuzz(func(t *testing.T, text []byte) {
		j, err := parse(text, kinds().Decode)
		if err != nil {
			return
		}
		for _, s := range j.Steps() {
			if _, err := json.Marshal(s); err != nil {
				t.Fatal(err)
			}
		}
		if j.Set != nil {
			j.endSet()
		}
	})
}

// TestDoneSaysWhatIsNew: the record of done repeats a step only if doing it changed it.
func TestDoneSaysWhatIsNew(t *testing.T) {
	j, dir := start(t)
	done := &fileStep{Path: filepath.Join(dir, "made before"), Made: true}
	if err := j.Do(t.Context(), done); err != nil {
		t.Fatal(err)
	}
	if err := j.Do(t.Context(), &fileStep{Path: filepath.Join(dir, "b")}); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(j.path)
	if err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(string(text), "made before"); n != 1 {
		t.Errorf("a step that did not change is there %d times:\n%s", n, text)
	}
	if n := strings.Count(string(text), `/b"`); n != 2 {
		t.Errorf("a step that changed is there %d times:\n%s", n, text)
	}
	again := reopen(t, j)
	for _, s := range again.Steps() {
		if !s.(*fileStep).Made || again.Unfinished() {
			t.Errorf("%+v, unfinished %v", s, again.Unfinished())
		}
	}
}

// TestUntouched: a journal notices that another process wrote to its file or replaced it.
func TestUntouched(t *testing.T) {
	j, dir := start(t)
	if err := j.Do(t.Context(), &fileStep{Path: filepath.Join(dir, "a")}); err != nil {
		t.Fatal(err)
	}
	if !j.Untouched() {
		t.Error("nobody touched it")
	}
	other := reopen(t, j)
	if other.Untouched() {
		t.Error("one that was read and not written does not know")
	}
	if err := other.SetPhase(Removing); err != nil {
		t.Fatal(err)
	}
	if !other.Untouched() || j.Untouched() {
		t.Errorf("after a write by the other: it %v, this %v", other.Untouched(), j.Untouched())
	}
	text, err := os.ReadFile(j.path)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(j.path+".new", text, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(j.path+".new", j.path); err != nil {
		t.Fatal(err)
	}
	if other.Untouched() {
		t.Error("replaced by its like, and not noticed")
	}
}
