package image

import (
	"archive/tar"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/klauspost/compress/zstd"

	"berth/internal/image/imagetest"
	"berth/internal/sys/refuse"
	"berth/test/testkit"
)

// heap returns the bytes of memory in use.
func heap() int64 {
	runtime.GC()
	runtime.GC() // what finalizers held
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// wordy writes entries, each with a header of almost 1 MiB that says nothing of use beside the name (one that is not ASCII is in the header).
func wordy(t testing.TB, to io.Writer, entries int, kind byte) {
	t.Helper()
	w := tar.NewWriter(to)
	comment := strings.Repeat("c", 1000_000)
	for i := range entries {
		testkit.Must(t, w.WriteHeader(&tar.Header{
			Name: fmt.Sprint("é", i), Typeflag: kind, Mode: 0o755, PAXRecords: map[string]string{"comment": comment},
		}))
	}
	testkit.Must(t, w.Close())
}

// TestKeptOfAnArchive: of each file in an archive its name and place are kept, not its header. Go's headers share the memory of all
// records of an entry.
func TestKeptOfAnArchive(t *testing.T) {
	archive := filepath.Join(t.TempDir(), "a.tar")
	f, err := os.Create(archive)
	testkit.Must(t, err)
	wordy(t, f, 40, tar.TypeReg)
	testkit.Must(t, f.Close())
	before := heap()
	s, err := openSource(t.Context(), archive, t.TempDir(), 1<<30)
	if err != nil {
		t.Fatal(err)
	}
	defer s.close()
	if more := heap() - before; more > 4<<20 {
		t.Errorf("an archive of 40 files takes %d bytes", more)
	}
	if _, _, err := s.open("é39"); err != nil {
		t.Error(err)
	}
}

// TestKeptOfALayer: of each folder its name and its time are kept.
func TestKeptOfALayer(t *testing.T) {
	testkit.NeedsRoot(t)
	root, err := os.OpenRoot(t.TempDir())
	testkit.Must(t, err)
	defer root.Close()
	r, w := io.Pipe()
	go func() {
		wordy(t, w, 40, tar.TypeDir)
		w.Close()
	}()
	before := heap()
	u := &unpacker{}
	left := DefaultLimits()
	if err := u.unpack(t.Context(), root, r, &left); err != nil {
		t.Fatal(err)
	}
	if more := heap() - before; more > 4<<20 {
		t.Errorf("a layer of 40 folders takes %d bytes", more)
	}
	runtime.KeepAlive(u)
}

// TestLongNames: what no file can be called is refused at once, also outside of the layers; and the error is short.
func TestLongNames(t *testing.T) {
	long := strings.Repeat("n/", 2100) + "n"
	for what, e := range map[string]E{"name": {Name: long}, "link": {Name: "x", Type: tar.TypeSymlink, Link: long}, "hard link": {Name: "x", Type: tar.TypeLink, Link: long}} {
		path := filepath.Join(t.TempDir(), "a.tar")
		testkit.Must(t, os.WriteFile(path, imagetest.Layer(t, e), 0o600))
		_, err := openSource(t.Context(), path, t.TempDir(), 1<<30)
		if refuse.KindOf(err) != refuse.Invalid || !strings.Contains(err.Error(), "longer than 4095 bytes") || len(err.Error()) > 1000 {
			t.Errorf("%s in an archive: %.300v", what, err)
		}
		if _, err := unpackTo(t, imagetest.Layer(t, e)); refuse.KindOf(err) != refuse.Invalid || len(err.Error()) > 1000 {
			t.Errorf("%s in a layer: %.300v", what, err)
		}
	}
}

// TestBudgets: what is kept in memory, and what each file takes on the disk however small it is, has a limit of its own.
func TestBudgets(t *testing.T) {
	testkit.NeedsRoot(t)
	var files, folders []E
	for i := range 300 {
		files = append(files, E{Name: fmt.Sprint("f", i)})
		folders = append(folders, E{Name: strings.Repeat("d", 250) + fmt.Sprint(i) + "/", Type: tar.TypeDir})
	}
	attrs := []E{{Name: "f", Xattrs: map[string]string{"user.a": strings.Repeat("v", 2000)}}}
	for name, c := range map[string]struct {
		in   []E
		left Limits
		says string
	}{
		"small files": {files, Limits{Bytes: 1 << 20, Entries: 1000, Kept: 1 << 20}, "more bytes than the limit"},
		"long names":  {folders, Limits{Bytes: 1 << 30, Entries: 1000, Kept: 64 << 10}, "more memory than the limit"},
		"attributes":  {attrs, Limits{Bytes: 4096 + 1000, Entries: 10, Kept: 1 << 20}, "more bytes than the limit"},
		"enough":      {append(files, folders...), Limits{Bytes: 4 << 20, Entries: 1000, Kept: 1 << 20}, ""},
	} {
		root, err := os.OpenRoot(t.TempDir())
		testkit.Must(t, err)
		err = (&unpacker{}).unpack(t.Context(), root, bytes.NewReader(imagetest.Layer(t, c.in...)), &c.left)
		root.Close()
		if c.says == "" && err == nil {
			continue
		}
		if refuse.KindOf(err) != refuse.Invalid || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: got %v, want %q", name, err, c.says)
		}
	}
}

// zeros is a stream of n zeros.
func zeros(n int64) io.Reader { return io.LimitReader(zero{}, n) }

type zero struct{}

func (zero) Read(p []byte) (int, error) { clear(p); return len(p), nil }

// squeeze compresses streams, one after the other, to a file.
func squeeze(t testing.TB, parts ...io.Reader) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "a.tar.zst")
	f, err := os.Create(path)
	testkit.Must(t, err)
	w, err := zstd.NewWriter(f, zstd.WithEncoderLevel(zstd.SpeedFastest))
	testkit.Must(t, err)
	_, err = io.Copy(w, io.MultiReader(parts...))
	testkit.Must(t, err, w.Close(), f.Close())
	return path
}

// headers returns the beginning of a tar whose one file claims a size, without the file's data.
func headers(t testing.TB, name string, size int64) io.Reader {
	t.Helper()
	var buf bytes.Buffer
	testkit.Must(t, tar.NewWriter(&buf).WriteHeader(&tar.Header{Name: name, Mode: 0o644, Size: size}))
	return &buf
}

// TestGrowth: small streams that grow large are refused by what their headers say, and long before their end where no header speaks of
// what follows.
func TestGrowth(t *testing.T) {
	testkit.NeedsRoot(t)
	for name, c := range map[string]struct {
		stream io.Reader
		kind   refuse.Kind
		says   string
	}{
		"a file over the limit":         {io.MultiReader(headers(t, "x", 2<<50), zeros(100)), refuse.Invalid, "unpacks to more than"},
		"a file that the disk lacks":    {io.MultiReader(headers(t, "x", 1<<49), zeros(100)), refuse.Cannot, "it needs 536870912 MiB"},
		"headers without end, no files": {endless(t, 200), refuse.Invalid, "belong to none of its files"},
	} {
		s := newStore(t)
		s.Limits.Bytes = 1 << 50
		_, err := s.Import(t.Context(), squeeze(t, c.stream), As{Name: "x"}, nil)
		if refuse.KindOf(err) != c.kind || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: got %v, want %q", name, err, c.says)
		}
	}
	for name, c := range map[string]struct{ stream io.Reader }{
		"behind the end":        {zeros(100 << 20)},
		"a white-out with data": {io.MultiReader(headers(t, ".wh.x", 100<<20), zeros(100<<20), zeros(1024))},
	} {
		root, err := os.OpenRoot(t.TempDir())
		testkit.Must(t, err)
		left := DefaultLimits()
		in := &counted{r: c.stream}
		err = (&unpacker{}).unpack(t.Context(), root, in, &left)
		root.Close()
		if refuse.KindOf(err) != refuse.Invalid || !strings.Contains(err.Error(), "belong to none of its files") || in.n > 70<<20 {
			t.Errorf("%s: read %d bytes, then %v", name, in.n, err)
		}
	}
}

// counted counts what is read.
type counted struct {
	r io.Reader
	n int64
}

func (c *counted) Read(p []byte) (int, error) {
	n, err := c.r.Read(p)
	c.n += int64(n)
	return n, err
}

// endless returns a tar of n global headers of almost 1 MiB.
func endless(t testing.TB, n int) io.Reader {
	t.Helper()
	r, w := io.Pipe()
	go func() {
		to := tar.NewWriter(w)
		for range n {
			if to.WriteHeader(&tar.Header{Typeflag: tar.TypeXGlobalHeader, PAXRecords: map[string]string{"comment": strings.Repeat("c", 1000_000)}}) != nil {
				break
			}
		}
		w.CloseWithError(to.Close())
	}()
	t.Cleanup(func() { r.Close() })
	return r
}

// TestTail: what lies behind the end of an archive's tar is not unpacked to the disk.
func TestTail(t *testing.T) {
	plain, err := os.ReadFile(imagetest.DockerArchive(t, "a:b", twoLayers(t)))
	testkit.Must(t, err)
	archive := squeeze(t, bytes.NewReader(plain), zeros(300<<20))
	src, err := openSource(t.Context(), archive, t.TempDir(), 200<<20)
	if err != nil {
		t.Fatal(err)
	}
	defer src.close()
	if img, err := findImage(src, "", ""); err != nil || img.tag != "a:b" {
		t.Errorf("%+v, %v", img, err)
	}
}

// TestManyStandardDevices: what was left out is named once.
func TestManyStandardDevices(t *testing.T) {
	s := newStore(t)
	entries := rootEntries()[:5]
	entries = append(entries, E{Name: "./bin/sh"})
	for range 500 {
		entries = append(entries, E{Name: "./dev/null", Type: tar.TypeChar, Major: 1, Minor: 3})
	}
	r, err := s.Import(t.Context(), newFile(t, imagetest.Layer(t, entries...)), As{Name: "x"}, nil)
	if diff := cmp.Diff([]string{"dev/null", "dev/console"}, r.Skipped); diff != "" || err != nil {
		t.Error(err, diff)
	}
	img := imagetest.Image{Layers: [][]byte{imagetest.Layer(t, entries...), imagetest.Layer(t, entries[1:3]...)}}
	r, err = newStore(t).Import(t.Context(), imagetest.OCIArchive(t, img), As{Name: "y"}, nil)
	if diff := cmp.Diff([]string{"dev/null", "dev/console"}, r.Skipped); diff != "" || err != nil {
		t.Error(err, diff)
	}
}

// TestDenseDocuments: documents about an image are bounded by what they become in memory, all of them together; and so is what a record
// keeps.
func TestDenseDocuments(t *testing.T) {
	layer := imagetest.Layer(t, E{Name: "x"})
	diff := `"rootfs":{"diff_ids":["` + imagetest.Digest(layer) + `"]}`
	docker := func(manifest, config string) string {
		return newFile(t, imagetest.Layer(t, E{Name: "manifest.json", Data: manifest}, E{Name: "c", Data: config}, E{Name: "l", Data: string(layer)}))
	}
	one := `{"Config":"c","RepoTags":["a:b"],"Layers":["l"]}`
	many := strings.TrimSuffix(strings.Repeat(`"a:b",`, 3000), ",")
	env, err := json.Marshal([]string{"A=" + strings.Repeat("x", 2<<20)})
	testkit.Must(t, err)
	for name, c := range map[string]struct{ archive, says string }{
		"history":      {docker("["+one+"]", `{"history":[`+strings.Repeat("{},", 300_000)+`{}],`+diff+`}`), "too many parts"},
		"tags":         {docker(`[{"Config":"c","RepoTags":[`+many+`],"Layers":["l"]}]`, `{`+diff+`}`), "more than 1000 images"},
		"all together": {docker("["+strings.Repeat(one+",", 40)+one+"]", `{"comment":"`+strings.Repeat("x", 7<<20)+`",`+diff+`}`), "documents"},
		"environment":  {docker("["+one+"]", `{"config":{"Env":`+string(env)+`},`+diff+`}`), "command"},
	} {
		s := newStore(t)
		if _, err := s.Import(t.Context(), c.archive, As{Name: "x"}, nil); refuse.KindOf(err) != refuse.Invalid || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: got %v, want %q", name, err, c.says)
		}
	}
}

// TestImportHoldsNothingUp: while an image is unpacked others are removed, also one whose layer the new image shares: the layer is
// then unpacked again.
func TestImportHoldsNothingUp(t *testing.T) {
	s := newStore(t)
	shared := imagetest.Layer(t, E{Name: "shared"})
	if _, err := s.Import(t.Context(), imagetest.OCIArchive(t, imagetest.Image{Layers: [][]byte{shared}}), As{Name: "old"}, nil); err != nil {
		t.Fatal(err)
	}
	removed := false
	r, err := s.Import(t.Context(), imagetest.OCIArchive(t, imagetest.Image{Layers: [][]byte{shared, imagetest.Layer(t, E{Name: "own"})}}), As{Name: "new"}, func(int64, int64) {
		if removed {
			return
		}
		removed = true
		ctx, cancel := context.WithTimeout(t.Context(), testkit.Bound())
		defer cancel()
		if err := s.Remove(ctx, "old", nobody); err != nil {
			t.Errorf("removed while another image is unpacked: %v", err)
		}
		if err := s.Sweep(ctx); err != nil {
			t.Error(err)
		}
	})
	if err != nil || !removed {
		t.Fatal(err, removed)
	}
	if missing := s.lacks(r.Layers); len(missing) > 0 {
		t.Errorf("the image lacks %v", missing)
	}
	if left, _ := os.ReadDir(s.tmp()); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
}

// TestLayerRemovedMeanwhile: a pull fetches no layer that the store has. If that one is removed while the others are unpacked, the pull says so, and
// leaves nothing.
func TestLayerRemovedMeanwhile(t *testing.T) {
	s := newStore(t)
	shared := imagetest.Layer(t, E{Name: "shared"})
	if _, err := s.Import(t.Context(), imagetest.OCIArchive(t, imagetest.Image{Layers: [][]byte{shared}}), As{Name: "old"}, nil); err != nil {
		t.Fatal(err)
	}
	pulls := imagetest.OCILayout(t, imagetest.Image{Layers: [][]byte{shared, imagetest.Layer(t, E{Name: "own"})}})
	src, whole, err := openLayout(pulls)
	testkit.Must(t, err)
	src.close()
	testkit.Must(t, os.Remove(filepath.Join(pulls, whole.layers[0].path)))
	_, err = s.Import(t.Context(), pulls, As{Name: "new", Manifest: whole.digest, From: "r/x"}, func(int64, int64) {
		if _, err := s.Get("old"); err == nil {
			testkit.Must(t, s.Remove(t.Context(), "old", nobody))
		}
	})
	if refuse.KindOf(err) != refuse.Busy || !strings.Contains(err.Error(), "pull the image again") {
		t.Error(err)
	}
	for _, dir := range []string{s.tmp(), s.layers(), s.records()} {
		if left, _ := os.ReadDir(dir); len(left) > 0 {
			t.Errorf("left in %s: %v", dir, left)
		}
	}
}
