package image

import (
	"archive/tar"
	"bytes"
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"berth/internal/image/imagetest"
	"berth/internal/sys/purge"
	"berth/test/testkit"
)

// FuzzUnpack unpacks any bytes as a layer or a plain root: no panic, and nothing outside the target folder is made or
// changed.
func FuzzUnpack(f *testing.F) {
	testkit.NeedsRoot(f)
	long := strings.Repeat("l/", 60)
	for _, seed := range [][]E{
		{{Name: "a/b", Data: "x"}, {Name: "a/h", Type: tar.TypeLink, Link: "a/b"}, {Name: "a/l", Type: tar.TypeSymlink, Link: "../../canary"}},
		{{Name: "l", Type: tar.TypeSymlink, Link: "../canary"}, {Name: "l/f", Data: "bad"}},
		{{Name: "l", Type: tar.TypeSymlink, Link: ".."}, {Name: "l/canary/.wh.f"}, {Name: "l/canary/.wh..wh..opq"}},
		{{Name: "l", Type: tar.TypeSymlink, Link: "../canary/f"}, {Name: "l", Data: "bad"}, {Name: "h", Type: tar.TypeLink, Link: "l"}},
		{{Name: "../canary/f", Data: "bad"}, {Name: "/canary", Data: "bad"}},
		{{Name: "d", Type: tar.TypeDir}, {Name: "d/x"}, {Name: "d", Type: tar.TypeSymlink, Link: "../canary"}, {Name: "d/x", Data: "bad"}, {Name: "d", Type: tar.TypeDir, Mode: 0o777}},
		{{Name: ".wh.a"}, {Name: "a/b"}, {Name: "a/.wh..wh..opq"}, {Name: "p", Type: tar.TypeFifo}, {Name: long + "f"}},
		{{Name: "f", Data: "x", Xattrs: map[string]string{"user.a": "b", "trusted.overlay.opaque": "y", "security.capability": "bad"}}},
	} {
		f.Add(false, imagetest.Layer(f, seed...))
	}
	f.Add(true, imagetest.Layer(f, E{Name: "/a/b", Data: "x"}, E{Name: "/a/h", Type: tar.TypeLink, Link: "//a/b"}, E{Name: "/../canary/f", Data: "bad"}))
	f.Add(true, imagetest.Layer(f, E{Name: "./dev/null", Type: tar.TypeChar, Major: 1, Minor: 3}, E{Name: "dev", Type: tar.TypeSymlink, Link: "../canary"}, E{Name: "dev/f", Data: "bad"}))
	for _, format := range sparseFormats() {
		f.Add(false, sparseLayer(f, format, 1<<20))
	}
	f.Fuzz(func(t *testing.T, plain bool, layer []byte) {
		dir := t.TempDir()
		target, canary := filepath.Join(dir, "target"), filepath.Join(dir, "canary")
		if err := os.MkdirAll(filepath.Join(canary, "sub"), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(canary, "f"), []byte("untouched"), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Mkdir(target, 0o755); err != nil {
			t.Fatal(err)
		}
		before := append(listing(t, canary), listingTop(t, dir)...)
		root, err := os.OpenRoot(target)
		if err != nil {
			t.Fatal(err)
		}
		defer root.Close()
		left := Limits{Bytes: 1 << 20, Entries: 200, Sparse: 1 << 24, Kept: 1 << 20}
		_ = (&unpacker{plain: plain}).unpack(t.Context(), root, bytes.NewReader(layer), &left)
		if diff := cmp.Diff(before, append(listing(t, canary), listingTop(t, dir)...)); diff != "" {
			t.Error(diff)
		}
		if err := purge.Tree(context.Background(), target); err != nil {
			t.Error(err)
		}
	})
}

// listingTop lists the names in dir.
func listingTop(t *testing.T, dir string) []string {
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, e := range entries {
		info, err := e.Info()
		if err != nil {
			t.Fatal(err)
		}
		names = append(names, info.Mode().Type().String()+" "+e.Name())
	}
	return names
}

// FuzzImport imports any bytes as an archive: no panic, and a refused import leaves no layer and no temporary file.
func FuzzImport(f *testing.F) {
	testkit.NeedsRoot(f)
	img := imagetest.Image{Layers: [][]byte{imagetest.Layer(f, E{Name: "a", Data: "x"})}}
	for _, path := range []string{imagetest.OCIArchive(f, img), imagetest.DockerArchive(f, "a:b", img)} {
		data, err := os.ReadFile(path)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data)
	}
	f.Add(imagetest.Layer(f, E{Name: "./", Type: tar.TypeDir}, E{Name: "./dev/null", Type: tar.TypeChar, Major: 1, Minor: 3}, E{Name: "./bin/sh", Data: "x"}))
	f.Fuzz(func(t *testing.T, data []byte) {
		s := newStore(t)
		s.Limits = Limits{Bytes: 1 << 20, Entries: 200, Sparse: 1 << 24, Kept: 1 << 20}
		path := filepath.Join(t.TempDir(), "archive")
		if err := os.WriteFile(path, data, 0o600); err != nil {
			t.Fatal(err)
		}
		_, err := s.Import(t.Context(), path, As{Name: "x"}, nil)
		want := 0
		if err == nil {
			want = 1
		}
		if got, listErr := s.List(); listErr != nil || len(got) != want {
			t.Errorf("import said %v, the store has %v, %v", err, got, listErr)
		}
		if left, _ := os.ReadDir(s.tmp()); len(left) > 0 {
			t.Errorf("left in tmp: %v", left)
		}
	})
}
