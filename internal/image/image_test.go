package image

import (
	"archive/tar"
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"berth/internal/image/imagetest"
	"berth/internal/spec/vnode"
	"berth/internal/sys/layout"
	"berth/internal/sys/refuse"
	"berth/test/testkit"
)

func newStore(t testing.TB) Store {
	t.Helper()
	testkit.NeedsRoot(t)
	return Open(layout.New(t.TempDir()))
}

func twoLayers(t testing.TB) imagetest.Image {
	return imagetest.Image{
		Config: imagetest.Config{
			Env: []string{"A=b"}, Entrypoint: []string{"/e"}, Cmd: []string{"c"},
			WorkingDir: "/w", User: "1:2", StopSignal: "SIGUSR1",
		},
		Layers: [][]byte{
			imagetest.Layer(t, imagetest.Entry{Name: "a/", Type: tar.TypeDir}, imagetest.Entry{Name: "a/one", Data: "1"}, imagetest.Entry{Name: "gone", Data: "x"}),
			imagetest.Layer(t, imagetest.Entry{Name: "a/two", Data: "22"}, imagetest.Entry{Name: ".wh.gone"}),
		},
	}
}

func TestImportKinds(t *testing.T) {
	for name, archive := range map[string]func(*testing.T) string{
		"oci archive": func(t *testing.T) string { return imagetest.OCIArchive(t, twoLayers(t)) },
		"oci folder":  func(t *testing.T) string { return imagetest.OCILayout(t, twoLayers(t)) },
		"docker":      func(t *testing.T) string { return imagetest.DockerArchive(t, "img:1", twoLayers(t)) },
		"docker gzip": func(t *testing.T) string {
			plain, err := os.ReadFile(imagetest.DockerArchive(t, "img:1", twoLayers(t)))
			if err != nil {
				t.Fatal(err)
			}
			path := filepath.Join(t.TempDir(), "x.tar.gz")
			if err := os.WriteFile(path, imagetest.Gzip(t, plain), 0o600); err != nil {
				t.Fatal(err)
			}
			return path
		},
		"several machines": func(t *testing.T) string {
			other := twoLayers(t)
			other.Arch = "riscv64"
			other.Layers = other.Layers[:1]
			return imagetest.OCIArchive(t, other, twoLayers(t))
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := newStore(t)
			var done, total int64
			r, err := s.Import(t.Context(), archive(t), As{Name: "img:1"}, func(d, n int64) { done, total = d, n })
			if err != nil {
				t.Fatal(err)
			}
			if done != total || total == 0 {
				t.Errorf("progress ended at %d of %d", done, total)
			}
			img := twoLayers(t)
			want := []string{imagetest.Digest(img.Layers[0]), imagetest.Digest(img.Layers[1])}
			if diff := cmp.Diff(want, r.Layers); diff != "" {
				t.Error(diff)
			}
			if r.Size != 4 {
				t.Errorf("size %d", r.Size)
			}
			got, err := s.Resolve(vnode.Image{Kind: vnode.OCIImage, Ref: "img:1"})
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(Config(img.Config), got.Config, cmp.AllowUnexported()); diff != "" {
				t.Error(diff)
			}
			if b, err := os.ReadFile(filepath.Join(got.Lowers[0], "a/two")); err != nil || !bytes.Equal(b, []byte("22")) {
				t.Errorf("a/two of the top layer: %q %v", b, err)
			}
			if err := s.Remove(t.Context(), "img:1", nobody); err != nil {
				t.Fatal(err)
			}
			left, _ := os.ReadDir(s.layers())
			if len(left) != 0 {
				t.Errorf("layers left: %v", left)
			}
			if _, err := s.Get("img:1"); refuse.KindOf(err) != refuse.NotFound {
				t.Errorf("after removal: %v", err)
			}
		})
	}
}

// TestAbsoluteArchive: names of an archive itself that begin with a slash, or with a point, are below its top, as are targets of links.
func TestAbsoluteArchive(t *testing.T) {
	layer := imagetest.Layer(t, E{Name: "/app/x", Data: "x"})
	archive := newFile(t, imagetest.Layer(t,
		E{Name: "/manifest.json", Data: `[{"Config":"c","RepoTags":["a:b"],"Layers":["/a/layer.tar","/b/layer.tar"]}]`},
		E{Name: "./c", Data: `{"rootfs":{"diff_ids":["` + imagetest.Digest(layer) + `","` + imagetest.Digest(layer) + `"]}}`},
		E{Name: "/x/y/layer.tar", Data: string(layer)},
		E{Name: "/a/layer.tar", Type: tar.TypeSymlink, Link: "/x/y/layer.tar"},
		E{Name: "/b/layer.tar", Type: tar.TypeLink, Link: "/x/y/layer.tar"},
	))
	s := newStore(t)
	if r, err := s.Import(t.Context(), archive, As{}, nil); err != nil || r.Name != "a:b" || r.Size != 1 {
		t.Errorf("%+v, %v", r, err)
	}
}

func nobody(string, []string) ([]string, error) { return nil, nil }
