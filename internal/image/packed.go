package image

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"berth/internal/spec/vnode"
	"berth/internal/storage/packed"
	"berth/internal/sys/jsonfile"
	"berth/internal/sys/lock"
	"berth/internal/sys/refuse"
)

// packed returns the part of the store that keeps images of one file.
func (s Store) packed() packed.Store { return packed.In(filepath.Join(s.dir, "packed")) }

// ListPacked returns the images that are one file: those packed here, and those trusted.
func (s Store) ListPacked() ([]Record, error) {
	files, err := s.packed().List()
	var all []Record
	for _, f := range files {
		r, parseErr := recordOf(f)
		if parseErr != nil {
			r.Broken = parseErr.Error()
		}
		all = append(all, r)
	}
	return all, err
}

// recordOf returns the record of a packed image. It is not written to the store's records.
func recordOf(f packed.Record) (Record, error) {
	r := Record{
		Version: recordVersion, Name: f.Name(), Manifest: f.Digest, From: f.Trailer.Image, Layers: []string{f.Digest},
		Size: f.Size, Created: f.Trailer.Created, Imported: f.Since, Broken: f.Broken,
		Packed: f.Kind, Copied: f.Copy,
	}
	for _, p := range f.Places {
		r.Places = append(r.Places, p.Path)
	}
	var err error
	r.Config, err = configOf(f.Trailer)
	return r, err
}

// configOf reads what a packed image says of its command.
func configOf(t packed.Trailer) (c Config, err error) {
	if len(t.Config) == 0 {
		return c, nil
	}
	if err := json.Unmarshal(t.Config, &c); err != nil {
		return Config{}, refuse.Invalidf("what the file says of its command cannot be read: %s", jsonfile.Wrong(t.Config, err))
	}
	return c, nil
}

// Trust lets nodes use a file that was packed elsewhere: see packed.Store.Trust.
func (s Store) Trust(ctx context.Context, path string) (Record, error) {
	path, err := filepath.Abs(path)
	if err != nil {
		return Record{}, err
	}
	release, err := s.Use(ctx, vnode.Image{Kind: vnode.FileImage})
	if err != nil {
		return Record{}, err
	}
	defer release()
	f, err := s.packed().Trust(ctx, path)
	if err != nil {
		return Record{}, err
	}
	return recordOf(f)
}

// Pack writes a stored image to a new file, which nodes can use as file:PATH: see packed.Store.Pack.
func (s Store) Pack(ctx context.Context, name, path string) (Record, error) {
	path, err := filepath.Abs(path)
	if err != nil {
		return Record{}, err
	}
	release, err := s.Use(ctx, vnode.Image{Kind: vnode.OCIImage})
	if err != nil {
		return Record{}, err
	}
	defer release()
	img, err := s.Resolve(vnode.Image{Kind: vnode.OCIImage, Ref: name})
	if err != nil {
		return Record{}, err
	}
	r, err := s.Get(name)
	if err != nil {
		return Record{}, err
	}
	t := packed.Trailer{Image: r.Name, Created: r.Created}
	if t.Config, err = json.Marshal(r.Config); err != nil {
		return Record{}, fmt.Errorf("image %s: %w", name, err)
	}
	f, err := s.packed().Pack(ctx, img.Lowers, t, path)
	if err != nil {
		return Record{}, fmt.Errorf("image %s: %w", name, err)
	}
	rec, err := recordOf(f)
	rec.NotKept = f.Lost.Notes()
	return rec, err
}

// resolvePacked resolves a file image.
func (s Store) resolvePacked(ref vnode.Image) (Image, error) {
	if packed.KindOf(ref.Ref) == "" {
		return Image{}, refuse.Cannotf("berth image import "+ref.Ref+" NAME stores an archive, then oci:NAME is the image",
			"image %s: nodes start from files of erofs and squashfs only", ref)
	}
	f, t, err := s.packed().Resolve(ref.Ref)
	if err != nil {
		return Image{}, err
	}
	img := Image{Ref: ref, Packed: f, Manifest: f.Digest, Layers: []string{f.Digest}}
	if img.Config, err = configOf(t); err != nil {
		return Image{}, fmt.Errorf("image %s: %w", ref, err)
	}
	return img, nil
}

// checkPacked mounts a packed image and unmounts it, to learn whether it can be mounted.
func checkPacked(img Image) error {
	if img.Packed == nil {
		return nil
	}
	m, err := img.Packed.Mount(context.Background())
	if err != nil {
		return err
	}
	return m.Close()
}

// Use keeps all images from being removed until release is called, for a user of an image that Users cannot find yet: a node until it runs.
// Its spec alone names no layers, because an import may give the name to another image meanwhile. It waits for a removal that is under way;
// the lock ends with the process.
//
// A caller that holds this lock may take the store's lock, so removals take this one first.
func (s Store) Use(ctx context.Context, ref vnode.Image) (release func(), err error) {
	if ref.Kind == vnode.HostImage || ref.Kind == vnode.DirImage {
		return func() {}, nil
	}
	f, err := s.using(ctx, lock.Share)
	if err != nil {
		return nil, err
	}
	return func() { f.Close() }, nil
}

// unused waits until no process is about to use an image, and keeps others from beginning to, until release is called.
func (s Store) unused(ctx context.Context) (release func(), err error) {
	f, err := s.using(ctx, lock.Open)
	if err != nil {
		return nil, err
	}
	return func() { f.Close() }, nil
}

func (s Store) using(ctx context.Context, take func(context.Context, string) (*os.File, error)) (*os.File, error) {
	if err := s.Make(); err != nil {
		return nil, err
	}
	f, err := take(ctx, s.useFile())
	if err != nil {
		return nil, fmt.Errorf("lock the images in use: %w", err)
	}
	return f, nil
}

// Prune is Collect. It also forgets the packed images whose files are gone, and returns their names.
func (s Store) Prune(ctx context.Context, users Users) (forgotten []string, err error) {
	release, err := s.unused(ctx)
	if err != nil {
		return nil, err
	}
	forgotten, err = s.packed().Prune(ctx, users.ofFile)
	release()
	return forgotten, errors.Join(err, s.Collect(ctx, users))
}

// ofFile is Users of a packed image.
func (u Users) ofFile(digest string) ([]string, error) { return u("", []string{digest}) }

// removePacked removes the record and the copy of a packed image. The caller holds the lock of unused.
func (s Store) removePacked(ctx context.Context, name string, users Users) error {
	if path, ok := strings.CutPrefix(name, "file:"); ok && !strings.HasPrefix(path, "sha256:") {
		abs, err := filepath.Abs(path)
		if err != nil {
			return err
		}
		name = "file:" + abs
	}
	_, err := s.packed().Remove(ctx, name, users.ofFile)
	return err
}
