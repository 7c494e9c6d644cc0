package serve

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
	"pgregory.net/rapid"

	"berth/internal/sys/treetar"
	"berth/internal/sys/treetar/treetest"
	"berth/test/testkit"
)

// stream lists a layer, reads all of its stream, and checks that its digest and size are those of the layer.
func stream(t *testing.T, dir string) (*layer, []byte) {
	t.Helper()
	l, err := openLayer(t.Context(), dir, t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.heads.Close() })
	return l, content(t, l)
}

func content(t *testing.T, l *layer) []byte {
	t.Helper()
	r, err := l.open()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	all, err := io.ReadAll(r)
	if err != nil {
		t.Fatal(err)
	}
	sum := sha256.Sum256(all)
	if got := "sha256:" + hex.EncodeToString(sum[:]); got != l.digest || int64(len(all)) != l.size {
		t.Fatalf("the stream is %s, %d bytes; the layer says %s, %d", got, len(all), l.digest, l.size)
	}
	return all
}

// TestStream reads the streams of random trees: they hold the tree, the same tree gives the same bytes, also after it was
// unpacked elsewhere, and any range is the range of the whole.
func TestStream(t *testing.T) {
	testkit.NeedsRoot(t)
	work := t.TempDir()
	var n atomic.Int64
	rapid.Check(t, func(rt *rapid.T) {
		dir := filepath.Join(work, strconv.FormatInt(n.Add(1), 10))
		if err := os.Mkdir(dir, 0o755); err != nil {
			rt.Fatal(err)
		}
		defer os.RemoveAll(dir)
		one, two := filepath.Join(dir, "one"), filepath.Join(dir, "two")
		treetest.Make(rt, one, treetest.All())
		l, all := stream(t, one)
		again, same := stream(t, one)
		if again.digest != l.digest || !bytes.Equal(all, same) {
			rt.Fatal("a second listing gave another stream")
		}
		if err := os.Mkdir(two, 0o755); err != nil {
			rt.Fatal(err)
		}
		unpack(t, two, all)
		if d := cmp.Diff(tree(t, one), tree(t, two)); d != "" {
			rt.Fatalf("unpacked (-want +got):\n%s", d)
		}
		r, err := l.open()
		if err != nil {
			rt.Fatal(err)
		}
		defer r.Close()
		for range 10 {
			at := rapid.Int64Range(0, l.size).Draw(rt, "at")
			size := rapid.Int64Range(0, l.size-at).Draw(rt, "size")
			if _, err := r.Seek(at, io.SeekStart); err != nil {
				rt.Fatal(err)
			}
			part := make([]byte, size)
			if _, err := io.ReadFull(r, part); err != nil || !bytes.Equal(part, all[at:at+size]) {
				rt.Fatalf("%d bytes from %d: %v", size, at, err)
			}
		}
	})
}

// tree describes a tree. The top's own time was set after it was unpacked, and small holes may be zeros.
func tree(t *testing.T, dir string) []string {
	keep := treetest.Whole()
	keep.TopTime, keep.Holes = false, false
	return treetest.Read(t, dir, keep)[1:]
}

func unpack(t *testing.T, dir string, stream []byte) {
	t.Helper()
	files, err := treetar.OpenDescriptors()
	if err != nil {
		t.Fatal(err)
	}
	defer files.Close()
	_, err = treetar.Unpack(t.Context(), bytes.NewReader(stream), treetar.To{Files: files, Owners: true, Place: func(*tar.Header) (int, string, error) {
		fd, err := unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		return fd, "", err
	}})
	if err != nil {
		t.Fatal(err)
	}
}

// TestWhiteouts: a device 0:0, as overlayfs has it for a file that is not there any more, is a whiteout; any other device is left out.
func TestWhiteouts(t *testing.T) {
	testkit.NeedsRoot(t)
	dir := t.TempDir()
	for name, dev := range map[string]uint64{"gone": 0, "vcs": unix.Mkdev(7, 0), "null": unix.Mkdev(1, 3), "odd": unix.Mkdev(0, 3)} {
		testkit.Must(t, unix.Mknod(filepath.Join(dir, name), unix.S_IFCHR|0o600, int(dev)))
	}
	_, all := stream(t, dir)
	var names []string
	for r := tar.NewReader(bytes.NewReader(all)); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		testkit.Must(t, err)
		names = append(names, h.Name)
	}
	if d := cmp.Diff([]string{"./", ".wh.gone"}, names); d != "" {
		t.Errorf("the layer holds (-want +got):\n%s", d)
	}
}

// TestRemembered checks what a layer's attribute saves, and that it is not believed of another tree.
func TestRemembered(t *testing.T) {
	testkit.NeedsRoot(t)
	dir := t.TempDir()
	file := filepath.Join(dir, "file")
	testkit.Must(t, os.WriteFile(file, []byte("one"), 0o644))
	first, _ := stream(t, dir)
	buf := make([]byte, 300)
	n, err := unix.Lgetxattr(dir, known, buf)
	if err != nil || !bytes.Contains(buf[:n], []byte(first.digest)) {
		t.Fatalf("the attribute is %q, %v", buf[:n], err)
	}
	// It is believed: the data are not read again.
	testkit.Must(t, unix.Lsetxattr(dir, known, bytes.ReplaceAll(buf[:n], []byte(first.digest), []byte("sha256:remembered")), 0))
	l, err := openLayer(t.Context(), dir, t.TempDir())
	testkit.Must(t, err)
	l.heads.Close()
	if l.digest != "sha256:remembered" {
		t.Errorf("the digest is %s", l.digest)
	}
	for what, change := range map[string]func() error{
		"another mode": func() error { return os.Chmod(file, 0o600) },
		"another file": func() error { return os.WriteFile(filepath.Join(dir, "more"), nil, 0o644) },
		"no attribute": func() error { return unix.Lremovexattr(dir, known) },
		"no digest":    func() error { return unix.Lsetxattr(dir, known, []byte("1 2"), 0) },
		"older form":   func() error { return unix.Lsetxattr(dir, known, append([]byte("0"), buf[1:n]...), 0) },
	} {
		testkit.Must(t, change())
		l, _ := stream(t, dir)
		if l.digest == "sha256:remembered" {
			t.Errorf("%s: the old digest is believed", what)
		}
		n, err = unix.Lgetxattr(dir, known, buf)
		testkit.Must(t, err)
		testkit.Must(t, unix.Lsetxattr(dir, known, bytes.ReplaceAll(buf[:n], []byte(l.digest), []byte("sha256:remembered")), 0))
	}
}

// TestLayerChanges reads a layer whose files go or shrink while they are read: an error, never other bytes.
func TestLayerChanges(t *testing.T) {
	testkit.NeedsRoot(t)
	for what, change := range map[string]func(file string) error{
		"gone":    os.Remove,
		"shorter": func(file string) error { return os.Truncate(file, 10) },
		"a link": func(file string) error {
			return errors.Join(os.Remove(file), os.Symlink("/etc/passwd", file))
		},
		"a FIFO": func(file string) error { return errors.Join(os.Remove(file), unix.Mkfifo(file, 0o600)) },
	} {
		dir := t.TempDir()
		file := filepath.Join(dir, "file")
		testkit.Must(t, os.WriteFile(file, bytes.Repeat([]byte("x"), 5000), 0o644))
		l, _ := stream(t, dir)
		testkit.Must(t, change(file))
		r, err := l.open()
		testkit.Must(t, err)
		if n, err := io.Copy(io.Discard, r); err == nil || n > 4000 {
			t.Errorf("%s: %d bytes, %v", what, n, err)
		}
		r.Close()
	}
}
