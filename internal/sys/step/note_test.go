package step

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"berth/test/testkit"
)

type end struct {
	Code, Restarts int
}

func noted(t *testing.T, j *Journal) (e end) {
	t.Helper()
	if ok, err := j.Noted("end", &e); !ok || err != nil {
		t.Fatalf("noted: %v, %v", ok, err)
	}
	return e
}

// TestNotes: the last value of each name holds, also after a kill, and a journal does not grow with their number.
func TestNotes(t *testing.T) {
	j, dir := start(t)
	if ok, err := j.Noted("owner", new(int)); ok || err != nil {
		t.Fatalf("before it was noted: %v, %v", ok, err)
	}
	testkit.Must(t, j.Note("owner", 4711))
	testkit.Must(t, j.Do(t.Context(), &fileStep{Path: filepath.Join(dir, "a")}))
	testkit.Must(t, j.SetPhase(Up))
	for i := range 5000 {
		testkit.Must(t, j.Note("end", end{Code: 7, Restarts: i}))
		if i%100 == 0 {
			testkit.Must(t, j.BeginSet("spec"))
			testkit.Must(t, j.Do(t.Context(), &fileStep{Path: filepath.Join(dir, "set")}))
			testkit.Must(t, j.EndSet())
		}
		if i%700 == 0 {
			j = reopen(t, j)
		}
	}
	fi, err := os.Stat(j.path)
	testkit.Must(t, err)
	if fi.Size() > 2*longest {
		t.Errorf("the journal grew to %d bytes", fi.Size())
	}
	for range 2 {
		owner := 0
		if ok, err := j.Noted("owner", &owner); !ok || err != nil || owner != 4711 {
			t.Errorf("owner %d, %v, %v", owner, ok, err)
		}
		if got := noted(t, j); got != (end{7, 4999}) {
			t.Errorf("%+v", got)
		}
		if diff := cmp.Diff([]string{"a"}, paths(j)); diff != "" || j.Phase != Up {
			t.Errorf("phase %s, %s", j.Phase, diff)
		}
		j = reopen(t, j)
	}
}

// TestNoteOnFullDisk: on a full disk no step is begun, but how the node ended is noted, and its steps are undone.
func TestNoteOnFullDisk(t *testing.T) {
	testkit.NeedsRoot(t)
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=256k"); err != nil {
		t.Skipf("no file system in memory: %v", err)
	}
	t.Cleanup(func() { _ = unix.Unmount(dir, 0) })
	other := t.TempDir()
	j, err := Create(filepath.Join(dir, "journal"), "n1", "boot-1")
	if err != nil {
		t.Fatal(err)
	}
	if err := j.Do(t.Context(), &fileStep{Path: filepath.Join(other, "a")}); err != nil {
		t.Fatal(err)
	}
	fill(t, filepath.Join(dir, "full"))
	for _, again := range []bool{false, true} {
		if again {
			j = reopen(t, j)
		}
		var failed error
		for i := 0; failed == nil && i < 200; i++ { // what was reserved for the begun step is used up first
			failed = j.Do(t.Context(), &fileStep{Path: filepath.Join(other, "b")})
		}
		if !errors.Is(failed, unix.ENOSPC) {
			t.Errorf("a step on a full disk: %v", failed)
		}
		if err := j.Note("end", end{Code: 137, Restarts: 2}); err != nil {
			t.Fatal(err)
		}
		if got := noted(t, reopen(t, j)); got.Code != 137 {
			t.Errorf("%+v", got)
		}
		if err := j.SetPhase(Up); err != nil {
			t.Error(err)
		}
	}
	if err := j.Close(t.Context()); err != nil {
		t.Error(err)
	}
	if left, _ := os.ReadDir(other); len(left) != 0 {
		t.Errorf("left behind: %v", left)
	}
}

// fill writes a file until its file system is full.
func fill(t *testing.T, path string) {
	t.Helper()
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for size := 64 << 10; size > 0; {
		if _, err := f.Write(make([]byte, size)); errors.Is(err, unix.ENOSPC) {
			size /= 2
		} else if err != nil {
			t.Fatal(err)
		}
	}
}
