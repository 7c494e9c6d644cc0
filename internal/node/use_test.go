package node

import (
	"os"
	"path/filepath"
	"testing"

	"berth/internal/image"
	"berth/internal/image/imagetest"
	"berth/internal/spec/vnode"
	"berth/internal/sys/layout"
	"berth/test/testkit"
)

// TestStartKeepsItsLayers: while a node starts, after its spec is stored, another image gets the name of its image. The layers that
// nothing names then are the node's all the same; they go when it has none of them any more.
func TestStartKeepsItsLayers(t *testing.T) {
	testkit.NeedsRoot(t)
	b := Open(layout.New(testkit.Dir(t, "")), Beside{})
	store := image.Open(b.Layout)
	first, err := store.Import(t.Context(), imagetest.Busybox(t), image.As{Name: "i"}, nil)
	testkit.Must(t, err)
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
	testkit.Must(t, err)
	_, err = b.create(t.Context(), l, n, starter{before: replace})
	l.release()
	testkit.Must(t, err)
	defer func() { _ = b.Remove(t.Context(), "n", true) }()
	isThere("while it starts", true)
	testkit.Must(t, store.Collect(t.Context(), b.ImageUsers))
	isThere("while it runs", true)
	testkit.Must(t, b.Remove(t.Context(), "n", true))
	testkit.Must(t, store.Collect(t.Context(), b.ImageUsers))
	isThere("when the node is gone", false)
}
