package image

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"berth/internal/spec/vnode"
	"berth/internal/sys/refuse"
	"berth/internal/sys/space"
	"berth/internal/sys/step"
)

// Resolve resolves a spec's image on this host. It changes nothing. Paths must be absolute, because only the reader of
// a spec knows the folder that the spec lies in.
//
// Errors: refuse.NotFound if the image or a layer is missing, refuse.Invalid for anything that is no image or is not allowed as
// one, refuse.Cannot for a file image that no admin trusts.
func (s Store) Resolve(ref vnode.Image) (Image, error) {
	switch ref.Kind {
	case vnode.HostImage:
		return Image{Ref: ref, Plain: true}, nil
	case vnode.DirImage:
		return s.resolveDir(ref)
	case vnode.OCIImage:
		r, err := s.Get(ref.Ref)
		if err != nil {
			return Image{}, err
		}
		img, err := s.resolveLayers(Image{Ref: ref, Manifest: r.Manifest, Layers: r.Layers, Config: r.Config})
		if err == nil && len(img.Missing) > 0 {
			err = &refuse.Error{Kind: refuse.NotFound, What: fmt.Sprintf("layers of image %s are gone from %s", ref, s.dir), Remedy: "import it again"}
		}
		return img, err
	case vnode.OCILayoutImage:
		return s.resolveLayout(ref)
	case vnode.FileImage:
		return s.resolvePacked(ref)
	}
	return Image{}, refuse.Invalidf("%q is not a kind of image", ref.Kind)
}

// resolveLayers sets Lowers and Missing from the image's layers.
func (s Store) resolveLayers(img Image) (Image, error) {
	var err error
	if img.Lowers, err = topFirst(s.dir, img.Layers); err != nil {
		return Image{}, err
	}
	img.Missing = s.lacks(img.Layers)
	return img, nil
}

// resolveLayout reads the manifest of an OCI image layout. Its layers may not be unpacked yet.
func (s Store) resolveLayout(ref vnode.Image) (Image, error) {
	src, img, err := openLayout(ref.Ref)
	if err != nil {
		return Image{}, fmt.Errorf("image %s: %w", ref, err)
	}
	defer src.close()
	var ids []string
	for _, l := range img.layers {
		ids = append(ids, l.diffID)
	}
	if ids, err = once(ids); err != nil {
		return Image{}, fmt.Errorf("image %s: %w", ref, err)
	}
	config, err := img.runConfig()
	if err != nil {
		return Image{}, fmt.Errorf("image %s: %w", ref, err)
	}
	return s.resolveLayers(Image{Ref: ref, Manifest: img.digest, Layers: ids, Config: config})
}

// openLayout opens the folder of an OCI image layout and finds the image for this machine.
func openLayout(dir string) (source, found, error) {
	dir, err := realFolder(dir)
	if err != nil {
		return nil, found{}, err
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, found{}, err
	}
	src := folderSource{root}
	img, err := findImage(src, "", "")
	if err != nil {
		src.close()
		return nil, found{}, err
	}
	return src, img, nil
}

// resolveDir checks a folder that becomes a root. The node's root user is mapped to the folder's root and can read all
// of it. So the host's own root is refused, and a folder that contains or lies in Berth's own (it holds other nodes'
// deltas).
func (s Store) resolveDir(ref vnode.Image) (Image, error) {
	dir, err := realFolder(ref.Ref)
	if err != nil {
		return Image{}, fmt.Errorf("image %s: %w", ref, err)
	}
	lib, err := filepath.EvalSymlinks(s.lib)
	if errors.Is(err, fs.ErrNotExist) {
		lib, err = s.lib, nil
	}
	switch {
	case err != nil:
		return Image{}, fmt.Errorf("image %s: %w", ref, err)
	case sameFile(dir, "/"):
		return Image{}, refuse.Invalidf("image %s: the host's own root may not be a node's; image: host shows the host's programs safely", ref)
	case within(lib, dir), within(dir, lib):
		return Image{}, refuse.Invalidf("image %s: Berth's own folder %s may not be seen by a node", ref, lib)
	}
	return Image{Ref: ref, Lowers: []string{dir}}, nil
}

// realFolder returns the folder's path with symbolic links resolved.
func realFolder(dir string) (string, error) {
	if !filepath.IsAbs(dir) {
		return "", refuse.Invalidf("%s is not an absolute path", dir)
	}
	real, err := filepath.EvalSymlinks(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return "", refuse.NotFoundf("there is no folder %s", dir)
	}
	if err != nil {
		return "", err
	}
	info, err := os.Stat(real)
	if err == nil && !info.IsDir() {
		err = refuse.Invalidf("%s is not a folder", dir)
	}
	return real, err
}

func sameFile(a, b string) bool {
	x, errX := os.Stat(a)
	y, errY := os.Stat(b)
	return errX == nil && errY == nil && os.SameFile(x, y)
}

// within reports whether path is dir or below it. It compares names only.
func within(path, dir string) bool {
	rel, err := filepath.Rel(dir, path)
	return err == nil && rel != ".." && !strings.HasPrefix(rel, "../")
}

// Unpack is the step image.unpack: it unpacks the layers of an oci-layout image into the store, where nodes share them.
// image ls and rm show the image as oci-layout:DIR. The layers are a cache: Undo leaves them.
type Unpack struct {
	Lib      string      `json:"lib"`
	Images   string      `json:"images"`
	Ref      vnode.Image `json:"ref"`
	Manifest string      `json:"manifest"` // digest at planning time: Do refuses a folder that changed since
	Layers   []string    `json:"layers"`
}

// Steps returns the steps that make all of img's Lowers exist: none, or one Unpack.
func (s Store) Steps(img Image) []step.Step {
	if len(img.Missing) == 0 {
		return nil
	}
	return []step.Step{&Unpack{Lib: s.lib, Images: s.dir, Ref: img.Ref, Manifest: img.Manifest, Layers: img.Layers}}
}

// Kind returns image.unpack.
func (u *Unpack) Kind() string { return "image.unpack" }

// Key identifies the claim.
func (u *Unpack) Key() string { return u.Manifest }

func (u *Unpack) String() string {
	return fmt.Sprintf("unpack %d layers of %s", len(u.Layers), u.Ref)
}

func (u *Unpack) store() Store { return Store{lib: u.Lib, dir: u.Images, Limits: DefaultLimits()} }

// Do unpacks the missing layers. Nodes that start together wait here for the lock; the later ones find the layers
// there.
func (u *Unpack) Do(ctx context.Context) error {
	s := u.store()
	if len(s.lacks(u.Layers)) == 0 {
		return nil
	}
	unlock, err := s.lockUnpack(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	if len(s.lacks(u.Layers)) == 0 {
		return nil
	}
	src, img, err := openLayout(u.Ref.Ref)
	if err != nil {
		return fmt.Errorf("image %s: %w", u.Ref, err)
	}
	defer src.close()
	if img.digest != u.Manifest {
		return refuse.Busyf("image %s changed between plan and apply: it is %s now; apply again", u.Ref, img.digest)
	}
	if _, err = s.addImage(ctx, src, img, u.Ref.String(), nil); err != nil {
		err = fmt.Errorf("image %s: %w", u.Ref, space.Full(s.dir, err))
	}
	return errors.Join(err, s.sweepTmp(context.WithoutCancel(ctx), true))
}

// Verify checks that the store has all layers.
func (u *Unpack) Verify(context.Context) error {
	if missing := u.store().lacks(u.Layers); len(missing) > 0 {
		return fmt.Errorf("image %s: %d layers are not in the store", u.Ref, len(missing))
	}
	return nil
}

// Undo leaves the layers for the next node.
func (u *Unpack) Undo(context.Context) error { return nil }
