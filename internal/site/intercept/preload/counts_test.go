package preload

import (
	"encoding/binary"
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"berth/test/testkit"
)

// TestCounts: counters are read of a server, and whether its library is of another version.
func TestCounts(t *testing.T) {
	fd, err := unix.MemfdCreate("berth-sync", unix.MFD_CLOEXEC)
	testkit.Must(t, err)
	testkit.Must(t, unix.Ftruncate(fd, 4096))
	page, err := unix.Mmap(fd, 0, 4096, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	testkit.Must(t, err)
	testkit.Must(t, unix.Close(fd))
	defer func() { testkit.Must(t, unix.Munmap(page)) }()
	for i, n := range []uint64{7, 2, uint64(unix.ENODEV)} {
		binary.NativeEndian.PutUint64(page[8*i:], n)
	}
	want := Server{PID: os.Getpid(), Moved: 7, Failed: 2, Last: unix.ENODEV, Other: true}
	for _, has := range []uint64{0, version} {
		binary.NativeEndian.PutUint64(page[24:], has)
		want.Other = has != version
		if got, ok, err := counts(os.Getpid()); got != want || !ok || err != nil {
			t.Errorf("a library of version %d: %+v, %v, %v", has, got, ok, err)
		}
	}
}
