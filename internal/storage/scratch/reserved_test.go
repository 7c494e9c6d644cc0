package scratch

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"berth/internal/spec/vnode"
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
