package scratch

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"berth/internal/sys/refuse"
)

// TestDisk: the disk for a machine's writes has all its place, is not made over what is there, and goes.
func TestDisk(t *testing.T) {
	d := &Disk{Path: filepath.Join(t.TempDir(), "delta"), Size: 32 << 20}
	if _, err := program("mkfs.ext4", "e2fsprogs"); err != nil {
		t.Skip("needs mkfs.ext4")
	}
	for _, do := range []func() error{
		func() error { return d.Prepare(t.Context()) }, func() error { return d.Do(t.Context()) }, func() error { return d.Verify(t.Context()) }, d.OnDisk,
	} {
		if err := do(); err != nil {
			t.Fatal(err)
		}
	}
	if err := d.Prepare(t.Context()); refuse.KindOf(err) != refuse.Busy {
		t.Errorf("over a file: %v", err)
	}
	if err := os.Truncate(d.Path, 16<<20); err != nil {
		t.Fatal(err)
	}
	if err := d.Verify(t.Context()); err == nil || !strings.Contains(err.Error(), "16777216") {
		t.Errorf("half of it is gone: %v", err)
	}
	for range 2 { // undone again after a kill
		if err := d.Undo(t.Context()); err != nil {
			t.Error(err)
		}
	}
	if _, err := os.Lstat(d.Path); !os.IsNotExist(err) {
		t.Errorf("it is still there: %v", err)
	}
}

// TestVolumeOfMachine: a volume that a machine had is never one of a container's, belongs to the machine's own root, and is not mounted on
// the host to be verified.
func TestVolumeOfMachine(t *testing.T) {
	dir := t.TempDir()
	v := Volume{Pool: Pool{Name: "p", ID: "1", Dir: dir}, Node: "n", Target: "/a", Size: 16 << 20, FS: "ext4"}
	m := v
	m.Machine = true
	if v.Key() == m.Key() {
		t.Errorf("both are %q", m.Key())
	}
	v.Own(5000, 10)
	m.Own(5000, 10)
	if v.Owner != 5000 || m.Owner != 0 {
		t.Errorf("a container's belongs to %d, a machine's to %d", v.Owner, m.Owner)
	}
	if err := m.Verify(t.Context()); err == nil || !strings.Contains(err.Error(), "does not mount it") {
		t.Errorf("verify: %v", err)
	}
}
