package node

import (
	"os"
	"path/filepath"
	"testing"

	"berth/internal/image"
	"berth/internal/image/imagetest"
	"berth/internal/spec/vnode"
	"berth/internal/sys/layout"
)

// TestStartKeepsItsLayers: while a node starts, after its spec is stored, another image gets the name of its image. The layers that
// nothing names then are the node's all the same; they go when it has none of them any more.
func TestStartKeepsItsLayers(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root: makes a node")
	}
	root, err := os.MkdirTemp("", "berth-use-") // t.TempDir is closed to the ids of a node
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(root)
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(os.Chmod(root, 0o755))
	b := Open(layout.New(root), Beside{})
	store := image.Open(b.Layout)
	first, err := store.Import(t.Context(), imagetest.Busybox(t), image.As{Name: "i"}, nil)
	must(err)
	layer := filepath.Join(b.Layout.Images(), "layers", "sha256", first.Layers[0][len("sha256:"):])
	other := imagetest.OCIArchive(t, imagetest.Image{Layers: [][]byte{imagetest.Layer(t, imagetest.Entry{Name: "other", Data: "other"})}})

	n := &vnode.Node{Name: "n", Image: vnode.Image{Kind: vnode.OCIImage, Ref: "i"}, Command: []string{"/bin/sleep", "600"}}
	replace := func() error {
		if _, err := b.Stored("n"); err != nil {
			t.Errorf("the node's spec is not stored yet: %v", err)
		}
		if _, err := store.Import(t.Context(), other, image.As{Name: "i"}, nil); err != nil {
			return err
		}
		return store.Tidy(t.Context(), b.ImageUsers)
	}
	isThere := func(when string, want bool) {
		t.Helper()
		if _, err := os.Stat(layer); (err == nil) != want {
			t.Errorf("%s: the layer of the node: %v", when, err)
		}
	}
	l, err := b.lock(t.Context(), "n")
	must(err)
	_, err = b.create(t.Context(), l, n, starter{before: replace})
	l.release()
	must(err)
	defer func() { _ = b.Remove(t.Context(), "n", true) }()
	isThere("while it starts", true)
	must(store.Collect(t.Context(), b.ImageUsers))
	isThere("while it runs", true)
	must(b.Remove(t.Context(), "n", true))
	must(store.Collect(t.Context(), b.ImageUsers))
	isThere("when the node is gone", false)
}
