package bench

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"berth/internal/bench/bed"
	"berth/internal/bench/result"
	"berth/internal/bench/side"
	"berth/internal/spec/vnode"
	"berth/internal/sys/refuse"
	"berth/test/testkit"
)

// short is how long a trial takes whose figures nobody looks at.
const short = 50 * time.Millisecond

// hostLab has nodes that are the host itself.
func hostLab() bed.Lab {
	return bed.Lab{Node: func(context.Context, *vnode.Node) (side.Arm, func(), error) { return side.Host, func() {}, nil }}
}

// smallDisk returns a file system of so many MiB on a loop device, and the device's path.
func smallDisk(t *testing.T, mib int64) (dir, loop string) {
	t.Helper()
	testkit.NeedsRoot(t)
	for _, tool := range []string{"losetup", "mkfs.ext4"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skipf("needs %s", tool)
		}
	}
	base := onDisk(t)
	file := filepath.Join(base, "disk")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(file, mib<<20); err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command("losetup", "--find", "--show", "--direct-io=on", file).CombinedOutput()
	if err != nil {
		t.Skipf("needs a loop device: %s", out)
	}
	loop = strings.TrimSpace(string(out))
	t.Cleanup(func() { _ = exec.Command("losetup", "--detach", loop).Run() })
	if out, err := exec.Command("mkfs.ext4", "-q", "-E", "nodiscard", loop).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	dir = filepath.Join(base, "mnt")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount(loop, dir, "ext4", 0, ""); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
	return dir, loop
}

// A disk that is full before, or becomes full, is one sentence; nothing is left on it.
func TestRealFullDisk(t *testing.T) {
	t.Parallel()
	needFio(t)
	dir, _ := smallDisk(t, 300)
	left := func() {
		t.Helper()
		if _, err := os.Stat(filepath.Join(dir, bed.DataFile)); err == nil {
			t.Error("the data file is left")
		}
		if _, err := os.Stat(filepath.Join(dir, bed.DataFile+bed.FreshName)); err == nil {
			t.Error("the new file is left")
		}
	}
	journal := filepath.Join(t.TempDir(), "j")
	o := bed.Options{Names: []string{"wnodes-file"}, Dirs: []string{dir}, Size: 1 << 30, Pairs: 1, Budget: time.Minute, Run: short, Warm: short / 10}
	_, err := Run(t.Context(), o, hostLab(), journal, nil)
	if refuse.KindOf(err) != refuse.Cannot || !strings.Contains(err.Error(), "free") {
		t.Errorf("no room for the data: %v", err)
	}
	left()

	o.Size = 80 << 20 // the second file fits before somebody else fills the disk
	filler := filepath.Join(dir, "filler")
	fill := func(p bed.Progress) {
		if _, err := os.Stat(filler); err != nil && p.What != bed.LayOut && !strings.HasPrefix(p.What, "prepare") {
			f, err := os.Create(filler)
			if err != nil {
				t.Error(err)
				return
			}
			defer f.Close()
			// All of it, with the blocks that are kept for root: however little a trial writes, there is no room for it.
			for at, part := int64(0), int64(64<<20); part >= 4096; {
				if unix.Fallocate(int(f.Fd()), 0, at, part) == nil {
					at += part
				} else {
					part /= 2
				}
			}
		}
	}
	_, err = Run(t.Context(), o, hostLab(), filepath.Join(t.TempDir(), "j"), fill)
	if refuse.KindOf(err) != refuse.Cannot || !strings.Contains(err.Error(), "become full") {
		t.Errorf("a disk that becomes full: %v", err)
	}
	left()
}

// A device that vanishes is one sentence.
func TestRealVanishedDevice(t *testing.T) {
	t.Parallel()
	needFio(t)
	dir, loop := smallDisk(t, 100)
	if err := unix.Unmount(dir, 0); err != nil {
		t.Fatal(err)
	}
	gone := false
	vanish := func(p bed.Progress) {
		if !gone && p.What != bed.LayOut && p.Done >= 4 {
			gone = true
			if err := os.Truncate(filepath.Join(filepath.Dir(dir), "disk"), 0); err != nil {
				t.Error(err)
			}
			if out, err := exec.Command("losetup", "--set-capacity", loop).CombinedOutput(); err != nil {
				t.Errorf("%v: %s", err, out)
			}
		}
	}
	o := bed.Options{Names: []string{"fio-b"}, Devices: []string{loop}, DestroyData: true, Size: 64 << 20, Pairs: 2, Budget: time.Minute, Run: short, Warm: short / 10}
	_, err := Run(t.Context(), o, hostLab(), filepath.Join(t.TempDir(), "j"), vanish)
	if refuse.KindOf(err) != refuse.NotFound || !strings.Contains(err.Error(), loop) || strings.Contains(err.Error(), "\n") {
		t.Errorf("%v", err)
	}
}

// A device is not written to as long as something uses it, nor where it is not given to be destroyed.
func TestRealDeviceInUse(t *testing.T) {
	needFio(t)
	_, loop := smallDisk(t, 100)
	o := bed.Options{Names: []string{"fio-b"}, Devices: []string{loop}, DestroyData: true, Size: 64 << 20, Pairs: 1, Budget: time.Minute}
	if _, err := Run(t.Context(), o, hostLab(), filepath.Join(t.TempDir(), "j"), nil); refuse.KindOf(err) != refuse.Busy {
		t.Errorf("a mounted device: %v", err)
	}
	o.Devices, o.DestroyData, o.Dirs = nil, false, []string{loop}
	if _, err := Run(t.Context(), o, hostLab(), filepath.Join(t.TempDir(), "j"), nil); refuse.KindOf(err) != refuse.Invalid {
		t.Errorf("a device as a folder: %v", err)
	}
	dir := onDisk(t)
	precious := filepath.Join(dir, bed.DataFile)
	if err := os.WriteFile(precious, []byte("precious"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Link(precious, filepath.Join(dir, "its other name")); err != nil {
		t.Fatal(err)
	}
	o.Dirs = []string{dir}
	if _, err := Run(t.Context(), o, hostLab(), filepath.Join(t.TempDir(), "j"), nil); refuse.KindOf(err) != refuse.Busy {
		t.Errorf("a file that is there: %v", err)
	}
	if text, err := os.ReadFile(precious); err != nil || string(text) != "precious" {
		t.Errorf("it was written to: %q %v", text, err)
	}
}

// The set for volumes takes the device, not the folder that is given too; without one it is left out with its reason.
func TestRealVolume(t *testing.T) {
	t.Parallel()
	needFio(t)
	dir, loop := smallDisk(t, 100)
	if err := unix.Unmount(dir, 0); err != nil {
		t.Fatal(err)
	}
	folder := onDisk(t)
	o := bed.Options{
		Names: []string{"wnodes-volume"}, Dirs: []string{folder}, Devices: []string{loop}, DestroyData: true, Size: 16 << 20, Pairs: 1, Budget: 15 * time.Second,
		Run: short, Warm: short / 10,
	}
	s, err := Run(t.Context(), o, hostLab(), filepath.Join(t.TempDir(), "j"), nil)
	if err != nil {
		t.Fatal(err)
	}
	e := s.Experiment("wnodes-volume")
	if len(e.Targets) != 1 || e.Targets[0].Path != loop || !e.Targets[0].Written {
		t.Errorf("measured on %+v", e.Targets)
	}
	var rows []string
	for _, r := range e.Rows {
		rows = append(rows, r.Name)
	}
	if got := strings.Join(rows, ", "); got != "write, rewrite, read, reread, random read, random write" {
		t.Errorf("rows %s; notes %q", got, e.Notes)
	}
	for _, tr := range e.Trials {
		if tr.Error != "" || tr.Values["bytes_per_second"] <= 0 {
			t.Errorf("%s in %s: %+v", tr.Row, tr.Arm, tr)
		}
	}
	if fi, err := os.Stat(loop); err != nil || fi.Mode()&os.ModeDevice == 0 {
		t.Errorf("the device is gone: %v %v", fi, err)
	}
	wantEmpty(t, folder)

	o.Devices, o.DestroyData = nil, false
	_, err = Run(t.Context(), o, hostLab(), filepath.Join(t.TempDir(), "j"), nil)
	if refuse.KindOf(err) != refuse.Cannot || !strings.Contains(err.Error(), "block device") || !strings.Contains(err.Error(), "--destroy-data") {
		t.Errorf("without a device: %v", err)
	}
	o.Names, o.Dirs, o.Devices = []string{"wnodes-file"}, nil, []string{loop}
	if _, err = Run(t.Context(), o, hostLab(), filepath.Join(t.TempDir(), "j"), nil); refuse.KindOf(err) != refuse.Cannot {
		t.Errorf("a file without a folder: %v", err)
	}
}

// A journal that met a full disk goes on with whole lines when there is room again.
func TestRealJournalOnFullDisk(t *testing.T) {
	testkit.NeedsRoot(t)
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=64k"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
	path := filepath.Join(dir, "j")
	j, err := newJournal(path, startRecord{Format: JournalFormat})
	if err != nil {
		t.Fatal(err)
	}
	defer j.f.Close()
	filler := filepath.Join(dir, "filler")
	if err := os.WriteFile(filler, make([]byte, 48<<10), 0o600); err != nil {
		t.Fatal(err)
	}
	added := 0
	for range 1000 {
		if err = j.add(record{Trial: &trialRecord{"x", result.Trial{Head: result.Head{Row: strings.Repeat("r", 1000)}}}}); err != nil {
			break
		}
		added++
	}
	if !errors.Is(err, unix.ENOSPC) || added == 0 {
		t.Fatalf("%d lines, then %v", added, err)
	}
	if err := os.Remove(filler); err != nil { // as the data file goes
		t.Fatal(err)
	}
	if err := j.add(record{End: &endRecord{Experiment: "x", Error: "no space"}}); err != nil {
		t.Fatal(err)
	}
	if err := j.f.Close(); err != nil {
		t.Fatal(err)
	}
	again, err := openJournal(path)
	if err != nil {
		t.Fatal(err)
	}
	defer again.f.Close()
	if n := len(again.lines); n != 1+added+1 || again.lines[n-1].End == nil {
		t.Errorf("%d lines of %d", n, 1+added+1)
	}
}

// Programs that are missing or too old.
func TestStudyPrograms(t *testing.T) {
	says := func(version string) bed.Lab {
		return bed.Lab{Node: func(context.Context, *vnode.Node) (side.Arm, func(), error) {
			return func(context.Context, []string) ([]byte, error) { return []byte(version), nil }, func() {}, nil
		}}
	}
	needFio(t)
	for _, version := range []string{"fio-2.99\n", "fio-3.1\n", "something\n"} {
		o := bed.Options{Names: []string{"fio-b"}, Dirs: []string{onDisk(t)}, Size: 1 << 20, Pairs: 1, Budget: time.Minute}
		_, err := Run(t.Context(), o, says(version), filepath.Join(t.TempDir(), "j"), nil)
		if refuse.KindOf(err) != refuse.Cannot || !strings.Contains(err.Error(), "apt-get install fio") && !strings.Contains(err.Error(), "one version in both") {
			t.Errorf("%q: %v", version, err)
		}
		wantEmpty(t, o.Dirs[0])
	}
	t.Setenv("PATH", t.TempDir())
	for name, remedy := range map[string]string{"fio-b": "fio", "cpu": "stress-ng", "cpu-db12": "pip install db12", "net-openlab": "iperf3"} {
		o := bed.Options{Names: []string{name}, Dirs: []string{onDisk(t)}, Size: 1 << 20, Pairs: 1, Budget: time.Hour}
		_, err := Run(t.Context(), o, hostLab(), filepath.Join(t.TempDir(), "j"), nil)
		if refuse.KindOf(err) != refuse.Cannot || !strings.Contains(err.Error(), remedy) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s without its program: %v", name, err)
		}
	}
}
