package image

import (
	"bytes"
	"compress/gzip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"berth/internal/image/imagetest"
	"berth/internal/sys/refuse"
	"berth/internal/sys/space"
	"berth/test/testkit"
)

// sparseFormats are GNU tar's ways to write holes.
func sparseFormats() [][]string {
	return [][]string{
		{"--format=gnu"},
		{"--format=posix", "--sparse-version=0.0"},
		{"--format=posix", "--sparse-version=0.1"},
		{"--format=posix", "--sparse-version=1.0"},
	}
}

// sparseLayer packs a file of this length with three pieces of data: at the start, in the middle and at the end.
func sparseLayer(t testing.TB, format []string, length int64) []byte {
	t.Helper()
	dir := t.TempDir()
	f, err := os.Create(filepath.Join(dir, "sparse"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for at, data := range map[int64]string{0: "first", length/2 + 1: "middle", length - 4: "last"} {
		if _, err := f.WriteAt([]byte(data), at); err != nil {
			t.Fatal(err)
		}
	}
	archive := filepath.Join(t.TempDir(), "layer.tar")
	cmd := exec.Command("tar", append([]string{"--sparse", "--owner=0", "--group=0", "-C", dir, "-cf", archive, "sparse"}, format...)...)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	data, err := os.ReadFile(archive)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// TestSparse unpacks a file of 100 GiB with three pieces of data: it is longer than the limit of written bytes.
func TestSparse(t *testing.T) {
	testkit.NeedsRoot(t)
	const length = 100 << 30
	for _, format := range sparseFormats() {
		t.Run(strings.Join(format, " "), func(t *testing.T) {
			dir, err := unpackTo(t, sparseLayer(t, format, length))
			if err != nil {
				t.Fatal(err)
			}
			var st unix.Stat_t
			if err := unix.Stat(dir+"/sparse", &st); err != nil {
				t.Fatal(err)
			}
			if st.Size != length || st.Blocks*512 > 64<<10 {
				t.Errorf("%d bytes long, %d on disk", st.Size, st.Blocks*512)
			}
			f, err := os.Open(dir + "/sparse")
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			for at, want := range map[int64]string{0: "first\x00", length / 2: "\x00middle\x00", length - 5: "\x00last"} {
				got := make([]byte, len(want))
				if _, err := f.ReadAt(got, at); err != nil || string(got) != want {
					t.Errorf("at %d: %q, %v", at, got, err)
				}
			}
		})
	}
}

func TestSparseLimits(t *testing.T) {
	testkit.NeedsRoot(t)
	layer := sparseLayer(t, sparseFormats()[0], 1<<30)
	for says, left := range map[string]Limits{
		"sparse files are longer": {Bytes: 1 << 30, Entries: 1, Sparse: 1<<30 - 1, Kept: 1 << 20},
		"more bytes":              {Bytes: 8192, Entries: 1, Sparse: 1 << 30, Kept: 1 << 20},
	} {
		root, err := os.OpenRoot(t.TempDir())
		if err != nil {
			t.Fatal(err)
		}
		err = (&unpacker{}).unpack(t.Context(), root, bytes.NewReader(layer), &left)
		if refuse.KindOf(err) != refuse.Invalid || !strings.Contains(err.Error(), says) {
			t.Errorf("got %v, want %q", err, says)
		}
		root.Close()
	}
	s := newStore(t)
	if _, err := s.Import(t.Context(), newFile(t, layer), As{Name: "x"}, nil); refuse.KindOf(err) != refuse.Invalid || !strings.Contains(err.Error(), "--sparse") {
		t.Errorf("a sparse file in the archive itself: %v", err)
	}
}

// newFile writes data to a new file.
func newFile(t testing.TB, data []byte) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "f")
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// TestSpace imports images that do not fit into a file system of 4 MiB. If the archive tells its size, the import is
// refused before anything is written. The refusal always names the file system and leaves nothing behind.
func TestSpace(t *testing.T) {
	noise := strings.Repeat("0123456789abcdef", 8<<20/16)
	large := imagetest.Layer(t, E{Name: "etc/f", Data: noise})
	var small []E
	for i := range 20 {
		small = append(small, E{Name: "etc/" + string(rune('a'+i)), Data: noise[:512<<10]})
	}
	quiet := func(layer []byte) []byte { // gzip in two parts gives the size of the second part only
		var end bytes.Buffer
		w := gzip.NewWriter(&end)
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		return append(imagetest.Gzip(t, layer), end.Bytes()...)
	}
	for name, c := range map[string]struct {
		archive string
		says    string
	}{
		"docker archive":   {imagetest.DockerArchive(t, "x:1", imagetest.Image{Layers: [][]byte{large}}), "it needs 9 MiB, and the file system at "},
		"OCI, compressed":  {imagetest.OCIArchive(t, imagetest.Image{Layers: [][]byte{large}}), "it needs 9 MiB, and the file system at "},
		"root":             {newFile(t, large), "it needs 9 MiB, and the file system at "},
		"root, compressed": {newFile(t, imagetest.Gzip(t, large)), "it needs 9 MiB, and the file system at "},
		"a large file":     {newFile(t, quiet(large)), "it needs 9 MiB, and the file system at "},
		"many small files": {newFile(t, quiet(imagetest.Layer(t, small...))), "it needs 2 MiB, and the file system at "},
	} {
		t.Run(name, func(t *testing.T) {
			onSmallDisk(t, 4<<20, func(s Store) error {
				unlock, err := s.lock(t.Context())
				if err != nil {
					return err
				}
				unlock()
				_, err = s.Import(t.Context(), c.archive, As{Name: "x"}, nil)
				if refuse.KindOf(err) != refuse.Cannot || !strings.Contains(err.Error(), c.says) || !strings.Contains(err.Error(), "(tmpfs small)") {
					t.Errorf("got kind %d: %v; want %q", refuse.KindOf(err), err, c.says)
				}
				for _, d := range []string{s.tmp(), s.layers(), s.records()} {
					if left, _ := os.ReadDir(d); len(left) > 0 {
						t.Errorf("left in %s: %v", d, left)
					}
				}
				return nil
			})
		})
	}
	t.Run("a file system that counts nothing", func(t *testing.T) {
		onDisk(t, "ramfs", "", func(s Store) error {
			return space.Need(filepath.Dir(s.lib), 1<<40)
		})
	})
	t.Run("fits", func(t *testing.T) {
		onSmallDisk(t, 16<<20, func(s Store) error {
			_, err := s.Import(t.Context(), imagetest.DockerArchive(t, "x:1", imagetest.Image{Layers: [][]byte{large}}), As{}, nil)
			return err
		})
	})
}
