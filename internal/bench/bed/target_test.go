package bed

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"berth/internal/bench/published"
	"berth/internal/bench/result"
	"berth/internal/bench/side"
	"berth/internal/spec/vnode"
	"berth/internal/sys/refuse"
)

func TestTwoRunsInOneFolder(t *testing.T) {
	o := Storage{Dir: onDisk(t), Size: 1 << 20}
	_, undo, err := prepare(t.Context(), o, func(int64, int64) {})
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := prepare(t.Context(), o, func(int64, int64) {}); refuse.KindOf(err) != refuse.Busy {
		t.Errorf("a second run in the same folder: %v", err)
	}
	if err := undo(); err != nil {
		t.Error(err)
	}
	wantEmpty(t, o.Dir)

	leave(t, filepath.Join(o.Dir, DataFile))
	target, undo, err := prepare(t.Context(), o, func(int64, int64) {})
	if err != nil {
		t.Fatal(err)
	}
	if fi, err := os.Stat(target.Path); err != nil || fi.Size() != 1<<20 {
		t.Errorf("%v %v", fi, err)
	}
	if err := undo(); err != nil {
		t.Error(err)
	}
	wantEmpty(t, o.Dir)
}

// leave leaves a data file as a killed run does.
func leave(t *testing.T, path string) {
	t.Helper()
	f, err := newFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteString("old"); err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
}

func TestRows(t *testing.T) {
	full := Rows(false, 2)
	if len(full) != 13 || full[0].Threads != 512 {
		t.Errorf("%+v", full)
	}
	for _, r := range append(full, Rows(true, 2)...) {
		if len(r.Name) > 14 {
			t.Errorf("%q breaks the table", r.Name)
		}
		if p, err := published.Disk(r.Pattern, r.Block); err != nil || p == nil {
			t.Errorf("%s: %v %v", r.Name, p, err)
		}
	}
	if p, _ := published.Disk("randread", 32<<10); p.PenaltyPct != 47.9 {
		t.Errorf("%+v", p)
	}
	if got := Rows(true, 2)[0].Name; got != "read 4K x32" {
		t.Error(got)
	}
}

// TestForeignDataFile checks that a file which merely has the data file's name is not touched.
func TestForeignDataFile(t *testing.T) {
	o := Storage{Dir: onDisk(t), Size: 1 << 20}
	precious := filepath.Join(o.Dir, "precious")
	if err := os.WriteFile(precious, []byte("data"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, link := range map[string]func(string, string) error{
		"hard link": os.Link, "symbolic link": os.Symlink, "folder": func(_, at string) error { return os.Mkdir(at, 0o700) },
		"file":       func(_, at string) error { return os.WriteFile(at, []byte("data"), 0o600) },
		"empty file": func(_, at string) error { return os.WriteFile(at, nil, 0o600) },
	} {
		for _, at := range []string{DataFile, DataFile + FreshName} {
			path := filepath.Join(o.Dir, at)
			if err := link(precious, path); err != nil {
				t.Fatal(err)
			}
			before, err := os.Lstat(path)
			if err != nil {
				t.Fatal(err)
			}
			o.fresh = at != DataFile
			if _, _, err := prepare(t.Context(), o, func(int64, int64) {}); refuse.KindOf(err) != refuse.Busy {
				t.Errorf("%s %s: taken for a data file: %v", name, at, err)
			}
			if b, err := os.ReadFile(precious); err != nil || string(b) != "data" {
				t.Errorf("%s %s: %q %v", name, at, b, err)
			}
			if after, err := os.Lstat(path); err != nil || !os.SameFile(before, after) || after.Size() != before.Size() {
				t.Errorf("%s %s: %v %v", name, at, after, err)
			}
			if err := os.Remove(path); err != nil {
				t.Fatal(err)
			}
			if err := os.Remove(precious); err != nil {
				t.Fatal(err)
			}
			wantEmpty(t, o.Dir)
			if err := os.WriteFile(precious, []byte("data"), 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// Both files that a killed run left are taken over, and gone afterwards.
func TestRealLeftFiles(t *testing.T) {
	needFio(t)
	dir := onDisk(t)
	leave(t, filepath.Join(dir, DataFile))
	leave(t, filepath.Join(dir, DataFile+FreshName))
	defs, err := Find(&Options{Names: []string{"wnodes-file"}})
	if err != nil {
		t.Fatal(err)
	}
	b := &Bed{}
	if err := makeDiskBed(t.Context(), b, &defs[0], &Options{Dirs: []string{dir}, Size: 4 << 20}, hostLab()); err != nil {
		t.Fatal(err)
	}
	leave(t, filepath.Join(dir, DataFile+FreshName))
	if got, err := b.Rows[0].Job.Measure(t.Context(), b.Arms[0], 100*time.Millisecond, 0); err != nil || got["bytes_per_second"] <= 0 {
		t.Errorf("%s: %v %v", b.Rows[0].Name, got, err)
	}
	if _, err := os.Stat(filepath.Join(dir, DataFile+FreshName)); err == nil {
		t.Error("the new file outlives its trial")
	}
	if err := b.Close(); err != nil {
		t.Error(err)
	}
	wantEmpty(t, dir)
}

// A device that may not be written has no write rows; requests smaller than the device's unit are left out.
func TestRowsThatDoNotFit(t *testing.T) {
	d := DiskTable(false)
	b := Bed{Targets: []result.DiskUsed{{Target: result.Target{ReadsOnly: true, DirectIO: 4096}}}}
	if err := b.DiskRows(&d); err != nil || len(b.Rows) != 6 || len(b.Notes) != 5+2 {
		t.Errorf("%v: %d rows, notes %q", err, len(b.Rows), b.Notes)
	}
}

// onDisk returns a folder of the test's own on a file system with direct I/O.
func onDisk(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	if err := CheckFolder(dir, 1<<20); refuse.KindOf(err) == refuse.Cannot {
		t.Skipf("no disk under the folder for temporary files: %v", err)
	}
	return dir
}

func wantEmpty(t *testing.T, dir string) {
	t.Helper()
	left, err := os.ReadDir(dir)
	if err != nil || len(left) > 0 {
		t.Errorf("left behind: %v %v", left, err)
	}
}

func needFio(t *testing.T) {
	t.Helper()
	if _, err := exec.LookPath("fio"); err != nil {
		t.Skip("fio is not installed: apt-get install fio")
	}
}

// hostLab has nodes that are the host itself.
func hostLab() Lab {
	return Lab{Node: func(context.Context, *vnode.Node) (side.Arm, func(), error) { return side.Host, func() {}, nil }}
}

// sidesOf are the host, the host again, and a node.
func sidesOf(host, null, node side.Arm) []Side {
	return []Side{{Name: result.Host, Run: host}, {Name: result.Null, Run: null}, {Name: result.Node, Run: node}}
}
