package machine

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"berth/test/testkit"
)

// TestTwo: two machines of one image read the same file, which the host has in memory once, and each keeps what it writes to itself. A container
// beside them reaches both.
func TestTwo(t *testing.T) {
	needs(t)
	needsTun(t)
	both := []string{"m8", "m9"}
	var files []string
	for i, name := range both {
		file := spec(t, name, fmt.Sprintf("network: [{mode: bridge, address: [192.0.2.2%d/24]}]\n", i))
		text, err := os.ReadFile(file)
		testkit.Must(t, err)
		testkit.Must(t, os.WriteFile(file, bytes.Replace(text, []byte("delta: {in: memory}"), []byte("delta: {size: 32MiB}"), 1), 0o600))
		files = append(files, file)
	}
	atOnce(len(files), func(i int) {
		if out, code := berth(t, "", "apply", "-f", files[i]); code != 0 {
			t.Errorf("apply of %s: exit code %d: %s", both[i], code, out)
		}
	})
	image, err := os.Open(packedImage(t).Path)
	testkit.Must(t, err)
	defer image.Close()
	is := inode(t, int(image.Fd()))
	var cached [2]int
	var written []map[[2]uint64]bool
	for i, name := range both {
		must(t, "exec", name, "--", "sh", "-c", "cat /bin/busybox >/dev/null; echo "+name+" >/word; sync")
		cached[i] = pagesInMemory(t, image)
		opened := regular(t, childOf(t, monitorOf(t, name)))
		if writes, ok := opened[is]; !ok || writes {
			t.Errorf("the emulator of %s has the files %v, want %v to read, through the page cache", name, opened, is)
		}
		delete(opened, is)
		written = append(written, opened)
	}
	if cached[0] == 0 || cached[1] > cached[0] {
		t.Errorf("of the image %d pages are in memory, and %d after another machine has read the same", cached[0], cached[1])
	}
	for file := range written[0] {
		if _, shared := written[1][file]; shared || len(written[0]) != 1 {
			t.Errorf("beside the image the emulators have the files %v and %v", written[0], written[1])
		}
	}
	container(t, "c8", "[192.0.2.30/24]")
	for i, name := range both {
		if out := must(t, "exec", name, "--", "cat", "/word"); out != name+"\n" {
			t.Errorf("%s reads %q", name, out)
		}
		answers(t, name, "c8", fmt.Sprintf("192.0.2.2%d", i))
	}
	must(t, append([]string{"rm", "--force"}, both...)...)
	for _, name := range both {
		if _, err := os.Stat(bench.Layout().Node(name).Lib); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("of %s is left: %v", name, err)
		}
	}
}

// atOnce calls do for 0, 1 … n-1, all at the same time, and waits for them.
func atOnce(n int, do func(i int)) {
	var all sync.WaitGroup
	for i := range n {
		all.Go(func() { do(i) })
	}
	all.Wait()
}

// inode says which file a descriptor is.
func inode(t *testing.T, fd int) [2]uint64 {
	t.Helper()
	var st unix.Stat_t
	testkit.Must(t, unix.Fstat(fd, &st))
	return [2]uint64{st.Dev, st.Ino}
}

// regular returns the regular files on disks that a process has open, and whether it can write to them or reads them past the page cache.
func regular(t *testing.T, pid int) map[[2]uint64]bool {
	t.Helper()
	all := map[[2]uint64]bool{}
	at := fmt.Sprintf("/proc/%d/fd", pid)
	for _, name := range names(t, at) {
		var st unix.Stat_t
		to, _ := os.Readlink(filepath.Join(at, name))
		if unix.Stat(filepath.Join(at, name), &st) != nil || st.Mode&unix.S_IFMT != unix.S_IFREG || strings.HasPrefix(to, "/memfd:") {
			continue
		}
		info, err := os.ReadFile(fmt.Sprintf("/proc/%d/fdinfo/%s", pid, name))
		testkit.Must(t, err)
		_, text, _ := strings.Cut(string(info), "flags:\t")
		text, _, _ = strings.Cut(text, "\n")
		flags, err := strconv.ParseInt(text, 8, 64)
		testkit.Must(t, err)
		all[[2]uint64{st.Dev, st.Ino}] = flags&(unix.O_ACCMODE|unix.O_DIRECT) != unix.O_RDONLY
	}
	return all
}

// pagesInMemory returns how many pages of a file the host has in its page cache.
func pagesInMemory(t *testing.T, f *os.File) (n int) {
	t.Helper()
	info, err := f.Stat()
	testkit.Must(t, err)
	text, err := unix.Mmap(int(f.Fd()), 0, int(info.Size()), unix.PROT_READ, unix.MAP_SHARED)
	testkit.Must(t, err)
	defer func() { testkit.Must(t, unix.Munmap(text)) }()
	page := os.Getpagesize()
	in := make([]byte, (len(text)+page-1)/page)
	if _, _, errno := unix.Syscall(unix.SYS_MINCORE, uintptr(unsafe.Pointer(&text[0])), uintptr(len(text)), uintptr(unsafe.Pointer(&in[0]))); errno != 0 {
		t.Fatalf("mincore: %v", errno)
	}
	for _, b := range in {
		n += int(b & 1)
	}
	return n
}
