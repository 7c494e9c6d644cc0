package records

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"

	"berth/internal/image"
	"berth/internal/spec"
	"berth/internal/spec/vnode"
	"berth/internal/sys/refuse"
)

// Specs returns the specs of all nodes, as they are now. One that is being made or removed is left out.
func (r Nodes) Specs() ([]*vnode.Node, error) {
	names, err := r.Names()
	if err != nil {
		return nil, err
	}
	var all []*vnode.Node
	for _, name := range names {
		if s, err := r.Stored(name); err == nil {
			all = append(all, s.Now)
		}
	}
	return all, nil
}

// Spec returns the node's spec as it is now, with the changes of berth set.
func (r Nodes) Spec(name string) (*vnode.Node, error) {
	s, err := r.Stored(name)
	if err != nil {
		return nil, err
	}
	return s.Now, nil
}

// SpecText is Spec as YAML.
func (r Nodes) SpecText(name string) ([]byte, error) {
	n, err := r.Spec(name)
	if err != nil {
		return nil, err
	}
	return spec.Marshal(n)
}

// ImageUsers names the nodes that use an image of the store by its name, or one of its layers: for a running node, those
// that it was started with; else those that it would start with.
func (r Nodes) ImageUsers(name string, layers []string) ([]string, error) {
	nodes, err := r.Names()
	if err != nil {
		return nil, err
	}
	var users []string
	for _, n := range nodes {
		s, err := r.Stored(n)
		if refuse.KindOf(err) == refuse.NotFound {
			continue // being made or removed
		}
		if err != nil { // a node whose spec is damaged may run, and cannot start
			c, noInit := r.CreatedInit(n)
			switch {
			case noInit == nil && holds(c.Layers(), layers):
				users = append(users, n)
			case noInit != nil && !errors.Is(noInit, fs.ErrNotExist) && !errors.Is(noInit, ErrRebooted):
				return nil, fmt.Errorf("which image node %s uses is not known: %w", n, errors.Join(err, noInit))
			}
			continue
		}
		if k := s.Now.Image.Kind; k != vnode.HostImage && k != vnode.DirImage && r.usesImage(s.Now, name, layers) {
			users = append(users, n)
		}
	}
	return users, nil
}

func (r Nodes) usesImage(n *vnode.Node, name string, layers []string) bool {
	store := image.Open(r.Layout)
	if named, err := store.Get(n.Image.Ref); err == nil && n.Image.Kind == vnode.OCIImage && named.Name == name {
		return true
	}
	var lowers []string
	if c, err := r.CreatedInit(n.Name); err == nil {
		lowers = c.Layers()
	} else if img, err := store.Resolve(n.Image); err == nil { // else it cannot start anyway
		lowers = append(img.Lowers, img.Layers...)
	}
	return holds(lowers, layers)
}

// holds reports whether one of the layers is among a node's lower folders.
func holds(lowers, layers []string) bool {
	return slices.ContainsFunc(layers, func(l string) bool {
		return slices.ContainsFunc(lowers, func(dir string) bool { return dir == l || filepath.Base(dir) == strings.TrimPrefix(l, "sha256:") })
	})
}
