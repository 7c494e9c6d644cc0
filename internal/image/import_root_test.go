package image

import (
	"archive/tar"
	"bytes"
	"os"
	"runtime"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/klauspost/compress/zstd"
	"golang.org/x/sys/unix"

	"berth/internal/image/imagetest"
	"berth/internal/spec/vnode"
	"berth/internal/sys/layout"
	"berth/internal/sys/refuse"
	"berth/test/testkit"
)

// onSmallDisk runs do with a store on a tmpfs of this size, in a mount namespace that ends with do's thread.
func onSmallDisk(t *testing.T, size int64, do func(Store) error) {
	t.Helper()
	onDisk(t, "tmpfs", "size="+strconv.FormatInt(size, 10), do)
}

func onDisk(t *testing.T, fstype, options string, do func(Store) error) {
	t.Helper()
	testkit.NeedsRoot(t)
	at := t.TempDir()
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine, and its namespace with it
		done <- func() error {
			if err := unix.Unshare(unix.CLONE_FS | unix.CLONE_NEWNS); err != nil {
				return err
			}
			if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
				return err
			}
			if err := unix.Mount("small", at, fstype, 0, options); err != nil {
				return err
			}
			return do(Open(layout.New(at)))
		}()
	}()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
}

func rootEntries() []E {
	return []E{
		{Name: "./", Type: tar.TypeDir},
		{Name: "./dev/", Type: tar.TypeDir},
		{Name: "./dev/null", Type: tar.TypeChar, Major: 1, Minor: 3},
		{Name: "./dev/console", Type: tar.TypeChar, Major: 5, Minor: 1},
		{Name: "./dev/fd", Type: tar.TypeSymlink, Link: "/proc/self/fd"},
		{Name: "./usr/bin/tool", Mode: 0o4755, Data: "x", UID: 7, Xattrs: map[string]string{"user.a": "b"}},
		{Name: "./usr/bin/again", Type: tar.TypeLink, Link: "./usr/bin/tool"},
		{Name: "./bin", Type: tar.TypeSymlink, Link: "usr/bin"},
		{Name: "/bin/more", Data: "y"},
		{Name: "/etc/hard", Type: tar.TypeLink, Link: "/usr/bin/tool"},
	}
}

func TestImportRoot(t *testing.T) {
	plain := imagetest.Layer(t, rootEntries()...)
	enc, err := zstd.NewWriter(nil)
	if err != nil {
		t.Fatal(err)
	}
	for name, data := range map[string][]byte{"plain": plain, "gzip": imagetest.Gzip(t, plain), "zstd": enc.EncodeAll(plain, nil)} {
		t.Run(name, func(t *testing.T) {
			s := newStore(t)
			var done, total int64
			r, err := s.Import(t.Context(), newFile(t, data), As{Name: "r"}, func(d, n int64) { done, total = d, n })
			if err != nil {
				t.Fatal(err)
			}
			if done != total || total != int64(len(data)) {
				t.Errorf("progress ended at %d of %d", done, total)
			}
			if diff := cmp.Diff([]string{"dev/null", "dev/console"}, r.Skipped); diff != "" {
				t.Error(diff)
			}
			img, err := s.Resolve(vnode.Image{Kind: vnode.OCIImage, Ref: "r"})
			if err != nil || len(img.Lowers) != 1 || len(img.Config.Command()) != 0 {
				t.Fatal(img, err)
			}
			want := []string{
				"Lrwxrwxrwx 0:0 bin -> usr/bin", "drwxr-xr-x 0:0 dev", "Lrwxrwxrwx 0:0 dev/fd -> /proc/self/fd", "drwxr-xr-x 0:0 etc",
				`urwxr-xr-x 7:0 etc/hard "x"`, "drwxr-xr-x 0:0 usr", "drwxr-xr-x 0:0 usr/bin",
				`urwxr-xr-x 7:0 usr/bin/again "x"`, `-rw-r--r-- 0:0 usr/bin/more "y"`, `urwxr-xr-x 7:0 usr/bin/tool "x"`,
			}
			if diff := cmp.Diff(want, listing(t, img.Lowers[0])); diff != "" {
				t.Error(diff)
			}
			if a := attr(img.Lowers[0]+"/usr/bin/tool", "user.a"); a != "b" {
				t.Errorf("user.a is %q", a)
			}
			// Again, under another name: the layer is stored once.
			if _, err := s.Import(t.Context(), newFile(t, plain), As{Name: "r2"}, nil); err != nil {
				t.Error(err)
			}
			if layers, _ := os.ReadDir(s.layers()); len(layers) != 1 {
				t.Errorf("layers: %v", layers)
			}
			if left, _ := os.ReadDir(s.tmp()); len(left) > 0 {
				t.Errorf("left: %v", left)
			}
		})
	}
}

func TestImportRootRefuses(t *testing.T) {
	for name, c := range map[string]struct {
		more E
		as   As
		says string
	}{
		"a disk":             {E{Name: "./dev/sda", Type: tar.TypeBlock, Major: 8}, As{Name: "x"}, `entry "./dev/sda": device nodes`},
		"another number":     {E{Name: "./dev/null", Type: tar.TypeChar, Major: 1, Minor: 1}, As{Name: "x"}, `entry "./dev/null": device nodes`},
		"not in dev":         {E{Name: "./srv/dev/null", Type: tar.TypeChar, Major: 1, Minor: 3}, As{Name: "x"}, `entry "./srv/dev/null": device nodes`},
		"a block device":     {E{Name: "./dev/zero", Type: tar.TypeBlock, Major: 1, Minor: 5}, As{Name: "x"}, "device nodes"},
		"white-out":          {E{Name: "./etc/.wh.passwd"}, As{Name: "x"}, "rename it"},
		"opaque":             {E{Name: "./etc/.wh..wh..opq"}, As{Name: "x"}, "rename it"},
		"climbing":           {E{Name: "/../x"}, As{Name: "x"}, "climb"},
		"climbing link":      {E{Name: "./x", Type: tar.TypeLink, Link: "/../../etc/passwd"}, As{Name: "x"}, "climb"},
		"hard link to a gap": {E{Name: "./x", Type: tar.TypeLink, Link: "./dev/null"}, As{Name: "x"}, "does not hold"},
		"no name":            {E{Name: "./x"}, As{}, "give one"},
		"pick":               {E{Name: "./x"}, As{Name: "x", Pick: "y"}, "plain root"},
	} {
		t.Run(name, func(t *testing.T) {
			s := newStore(t)
			_, err := s.Import(t.Context(), newFile(t, imagetest.Layer(t, append(rootEntries(), c.more)...)), c.as, nil)
			if refuse.KindOf(err) != refuse.Invalid || !strings.Contains(err.Error(), c.says) {
				t.Errorf("got %v, want %q", err, c.says)
			}
			for _, d := range []string{s.tmp(), s.layers(), s.records()} {
				if left, _ := os.ReadDir(d); len(left) > 0 {
					t.Errorf("left in %s: %v", d, left)
				}
			}
		})
	}
}

// TestImportPipe: a FIFO is refused and does not block the import.
func TestImportPipe(t *testing.T) {
	pipe := t.TempDir() + "/pipe"
	if err := unix.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := newStore(t).Import(t.Context(), pipe, As{Name: "x"}, nil); refuse.KindOf(err) != refuse.Invalid || !strings.Contains(err.Error(), "to a file first") {
		t.Errorf("got %v", err)
	}
}

// TestCompressions checks the messages for compressions that are not supported.
func TestCompressions(t *testing.T) {
	for magic, want := range map[string]string{"\xfd7zXZ\x00": "xz -d", "BZh9": "bzip2 -d"} {
		s := newStore(t)
		_, err := s.Import(t.Context(), newFile(t, append([]byte(magic), bytes.Repeat([]byte("x"), 600)...)), As{Name: "x"}, nil)
		if refuse.KindOf(err) != refuse.Invalid || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v", magic, err)
		}
	}
}
