package scratch

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"berth/internal/spec/vnode"
	"berth/internal/sys/refuse"
)

// TestReserved: the file of a volume keeps its place on the disk. No thread of the kernel zeroes its inode tables, which would be holes
// in the file, and the holes that its file system makes all the same are filled before the node starts.
func TestReserved(t *testing.T) {
	dir := disk(t, "", "mkfs.ext4", "-F")
	s, _ := pool(t, dir)
	v := volume(t, s, vnode.Scratch{Target: "/tmp", Size: 20 << 20})
	if err := made(t, v); err != nil {
		t.Fatal(err)
	}
	root, err := v.open()
	if err != nil {
		t.Fatal(err)
	}
	var st unix.Stat_t
	if err := unix.Fstat(int(root.Fd()), &st); err != nil {
		t.Fatal(err)
	}
	device, err := os.Readlink(fmt.Sprintf("/sys/dev/block/%d:%d", unix.Major(st.Dev), unix.Minor(st.Dev)))
	if err != nil {
		t.Fatal(err)
	}
	options, err := os.ReadFile("/proc/fs/ext4/" + filepath.Base(device) + "/options")
	if err != nil || slices.ContainsFunc(strings.Fields(string(options)), func(o string) bool { return strings.HasPrefix(o, "init_itable") }) {
		t.Errorf("the kernel zeroes the inode tables: %v, options %s", err, options)
	}
	root.Close()
	f, err := os.OpenFile(v.Path(), os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := unix.Fallocate(int(f.Fd()), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, 8<<20, 4<<20); err != nil {
		t.Fatal(err)
	}
	o := &Open{Volumes: []*Volume{v}}
	if err := errors.Join(o.Do(t.Context()), o.Verify(t.Context()), unix.Fstat(int(f.Fd()), &st)); err != nil {
		t.Fatal(err)
	}
	if st.Blocks*512 < 20<<20 {
		t.Errorf("before the start %d bytes of 20 MiB have a place on the disk", st.Blocks*512)
	}
	if err := v.Undo(t.Context()); err != nil {
		t.Error(err)
	}
}

// TestReservedOnFull: a volume that has all its place, or nearly, is reserved again on an XFS that has less free than the volume is large, or nothing.
func TestReservedOnFull(t *testing.T) {
	dir := disk(t, "", "mkfs.xfs")
	s, p := pool(t, dir)
	const size = 250 << 20
	v := volume(t, s, vnode.Scratch{Target: "/tmp", Size: size})
	if err := made(t, v); err != nil {
		t.Fatal(err)
	}
	var free unix.Statfs_t
	if err := unix.Statfs(dir, &free); err != nil || int64(free.Bavail)*free.Bsize >= size {
		t.Fatalf("the pool has %d bytes free, %v", int64(free.Bavail)*free.Bsize, err)
	}
	f, err := os.OpenFile(v.Path(), os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := unix.Fallocate(int(f.Fd()), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, 8<<20, 4<<20); err != nil {
		t.Fatal(err)
	}
	var st unix.Stat_t
	if err := errors.Join(p.reserveAgain(v.Name(), size), unix.Fstat(int(f.Fd()), &st)); err != nil || st.Blocks*512 < size {
		t.Errorf("with a hole and some place free: %d bytes of %d have a place on the disk, %v", st.Blocks*512, size, err)
	}
	more, err := os.Create(filepath.Join(dir, "more"))
	if err != nil {
		t.Fatal(err)
	}
	defer more.Close()
	for piece := int64(64 << 20); piece >= 64<<10; {
		at, err := more.Seek(0, io.SeekEnd)
		if err != nil {
			t.Fatal(err)
		}
		if err := unix.Fallocate(int(more.Fd()), 0, at, piece); errors.Is(err, unix.ENOSPC) {
			piece /= 2
		} else if err != nil {
			t.Fatal(err)
		}
	}
	if err := p.reserveAgain(v.Name(), size); err != nil {
		t.Errorf("with all its place on a full disk: %v", err)
	}
	if err := errors.Join(unix.Fallocate(int(f.Fd()), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, 8<<20, 4<<20), p.reserveAgain(v.Name(), size)); err != nil {
		t.Errorf("with a hole for which there is just room: %v", err)
	}
	if err := unix.Fallocate(int(f.Fd()), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, 8<<20, 4<<20); err != nil {
		t.Fatal(err)
	}
	if err := unix.Fallocate(int(more.Fd()), unix.FALLOC_FL_KEEP_SIZE, 1<<30, 4<<20); err != nil { // somebody else takes the hole's place
		t.Fatal(err)
	}
	if err := p.reserveAgain(v.Name(), size); refuse.KindOf(err) != refuse.Cannot {
		t.Errorf("with a hole on a full disk: %v", err)
	}
	if err := v.Undo(t.Context()); err != nil {
		t.Error(err)
	}
}
