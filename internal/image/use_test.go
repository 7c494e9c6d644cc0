package image

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"berth/internal/image/imagetest"
	"berth/internal/spec/vnode"
	"berth/internal/sys/refuse"
	"berth/test/testkit"
)

// starting is the nodes of a test: what they use from the moment on in which their spec is stored.
type starting struct {
	sync.Mutex
	uses map[int]Image
}

func (s *starting) set(node int, img *Image) {
	s.Lock()
	defer s.Unlock()
	delete(s.uses, node)
	if img != nil {
		s.uses[node] = *img
	}
}

func (s *starting) users(name string, layers []string) (names []string, _ error) {
	s.Lock()
	defer s.Unlock()
	for n, img := range s.uses {
		if img.Ref.Kind == vnode.OCIImage && img.Ref.Ref == name || slices.ContainsFunc(layers, func(l string) bool { return slices.Contains(img.Layers, l) }) {
			names = append(names, fmt.Sprint("n", n))
		}
	}
	return names, nil
}

// TestCollectNeverTakesWhatIsUsed: nodes start from images of the store and from OCI layouts, while others import, remove and
// prune images with the same layers. Whatever the order, a start finds the image whole or gone, and keeps what it found.
func TestCollectNeverTakesWhatIsUsed(t *testing.T) {
	testkit.NeedsRoot(t)
	s := newStore(t)
	base := imagetest.Layer(t, E{Name: "bin/base", Data: "base"})
	var archives []string
	var refs []vnode.Image
	for i := range 3 {
		img := imagetest.Image{Layers: [][]byte{base, imagetest.Layer(t, E{Name: "bin/own", Data: fmt.Sprint(i)})}}
		archives = append(archives, imagetest.OCIArchive(t, img))
		refs = append(refs, vnode.Image{Kind: vnode.OCIImage, Ref: fmt.Sprint("i", i)})
		refs = append(refs, vnode.Image{Kind: vnode.OCILayoutImage, Ref: imagetest.OCILayout(t, img)})
	}
	nodes := &starting{uses: map[int]Image{}}
	const rounds = 60
	found := make([]int, 4)
	var starts, removals sync.WaitGroup
	stop := make(chan struct{})
	for n := range found {
		starts.Go(func() {
			for i := range rounds {
				ref := refs[(n+i)%len(refs)]
				release, err := s.Use(t.Context(), ref)
				if err != nil {
					t.Error(err)
					return
				}
				img, err := s.Resolve(ref)
				if err == nil {
					for _, st := range s.Steps(img) { // unpacks
						if err := st.Do(t.Context()); err != nil {
							t.Errorf("unpack: %v", err)
						}
					}
					time.Sleep(time.Millisecond) // for what else a start does before it stores its spec
					nodes.set(n, &img)
				}
				release()
				if refuse.KindOf(err) == refuse.NotFound {
					continue
				}
				if err != nil {
					t.Errorf("resolve %s: %v", ref, err)
					return
				}
				found[n]++
				for range 20 { // it runs
					for _, dir := range img.Lowers {
						if files, err := os.ReadDir(filepath.Join(dir, "bin")); err != nil || len(files) != 1 {
							t.Errorf("round %d of node %d: a layer of %s was taken: %v, %v", i, n, ref, files, err)
							return
						}
					}
				}
				nodes.set(n, nil)
			}
		})
	}
	for w := range 2 {
		removals.Go(func() {
			for i := w; ; i++ {
				select {
				case <-stop:
					return
				default:
				}
				name := fmt.Sprint("i", i%3)
				if _, err := s.Import(t.Context(), archives[i%3], As{Name: name}, nil); err != nil {
					t.Error(err)
					return
				}
				err := s.Remove(t.Context(), name, nodes.users)
				if k := refuse.KindOf(err); err != nil && k != refuse.Busy && k != refuse.NotFound {
					t.Error(err)
					return
				}
				if _, err := s.Prune(t.Context(), nodes.users); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	starts.Wait()
	close(stop)
	removals.Wait()
	t.Logf("images found by the nodes: %v of %d", found, rounds)
	for n, f := range found {
		if f == 0 {
			t.Errorf("node %d found no image in %d rounds", n, rounds)
		}
	}
	for _, ref := range refs {
		name := ref.Ref
		if ref.Kind != vnode.OCIImage {
			name = ref.String()
		}
		if err := s.Remove(t.Context(), name, nodes.users); err != nil && refuse.KindOf(err) != refuse.NotFound {
			t.Error(err)
		}
	}
	if _, err := s.Prune(t.Context(), nodes.users); err != nil {
		t.Error(err)
	}
	if left, _ := os.ReadDir(s.layers()); len(left) > 0 {
		t.Errorf("layers left: %v", left)
	}
}
