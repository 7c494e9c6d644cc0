package packed

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"berth/internal/sys/jsonfile"
	"berth/internal/sys/refuse"
)

// Resolve finds the file that the image file:PATH stands for: the file itself if berth packed it and only root could change
// it since, else the store's copy of it. It changes nothing.
//
// Errors: refuse.NotFound if there is no such file; refuse.Invalid if it is none of the known file systems; refuse.Cannot if
// berth did not pack it and no admin trusts it, or if it was changed since.
func (s Store) Resolve(path string) (*File, Trailer, error) {
	real, f, id, err := find(path)
	if err != nil {
		return nil, Trailer{}, err
	}
	defer f.Close()
	all, err := s.List()
	if err != nil {
		return nil, Trailer{}, err
	}
	r, err := match(all, f, id)
	if err != nil {
		return nil, Trailer{}, fmt.Errorf("image file:%s: %w", path, err)
	}
	if r == nil {
		return nil, Trailer{}, s.foreign(path, f)
	}
	img := &File{Image: path, Path: real, Kind: r.Kind, Digest: r.Digest, ID: id, Lock: s.lockFile()}
	if r.Copy {
		img.Path = s.file(r.Digest)
		copied, st, err := open(img.Path)
		if err != nil {
			return nil, Trailer{}, refuse.Cannotf("berth image trust "+path+" copies it again", "image file:%s: its copy in the store is gone: %w", path, err)
		}
		copied.Close()
		img.ID = idOf(st)
		return img, r.Trailer, nil
	}
	// A file system of an unknown maker can have a file with any inode, so it must be the one that berth wrote to: by its number,
	// or, where numbers have changed, by the path.
	packed := slices.ContainsFunc(r.Places, func(p Place) bool {
		return p.Packed && p.ID.Inode == id.Inode && (p.ID.Dev == id.Dev || p.Path == real)
	})
	if !packed || !isLocal(f) {
		return nil, Trailer{}, refuse.Cannotf("berth image trust "+path+" copies it into the store, if you trust who wrote it",
			"image file:%s is a copy of a file that berth packed, and others may have changed it below the kernel", path)
	}
	img.Local = true
	checked, err := img.open()
	if err != nil {
		return nil, Trailer{}, err
	}
	checked.Close()
	return img, r.Trailer, nil
}

// find opens the file at a path, and returns its identity.
func find(path string) (real string, f *os.File, id ID, err error) {
	if !filepath.IsAbs(path) {
		return "", nil, ID{}, refuse.Invalidf("%s is not an absolute path", path)
	}
	if real, err = filepath.EvalSymlinks(path); errors.Is(err, fs.ErrNotExist) {
		return "", nil, ID{}, refuse.NotFoundf("there is no file %s", path)
	}
	if err == nil {
		err = jsonfile.CheckText("the path", real)
	}
	if err != nil {
		return "", nil, ID{}, err
	}
	f, st, err := open(real)
	if err != nil {
		return "", nil, ID{}, err
	}
	return real, f, idOf(st), nil
}

// match finds the record of a file: by its identity when it was recorded, else by its digest. It reads the file only if a
// record has its size.
func match(all []Record, f io.ReadSeeker, id ID) (*Record, error) {
	sized := false
	for i, r := range all {
		if r.Broken == "" && slices.ContainsFunc(r.Places, func(p Place) bool { return p.ID == id }) {
			return &all[i], nil
		}
		sized = sized || r.Broken == "" && r.Size == id.Size
	}
	if !sized {
		return nil, nil
	}
	digest, err := digestOf(f)
	if err != nil {
		return nil, err
	}
	for i, r := range all {
		if r.Digest == digest && r.Broken == "" {
			return &all[i], nil
		}
	}
	return nil, nil
}

// digestOf returns the digest of a file's content.
func digestOf(f io.ReadSeeker) (string, error) {
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		return "", err
	}
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
		return "", err
	}
	return "sha256:" + hex.EncodeToString(h.Sum(nil)), nil
}

// foreign refuses a file that no admin trusts.
func (s Store) foreign(path string, f *os.File) error {
	kind, err := magic(f)
	if err != nil {
		return fmt.Errorf("image file:%s: %w", path, err)
	}
	if kind == "" {
		return refuse.Invalidf("image file:%s holds neither erofs nor squashfs", path)
	}
	return refuse.Cannotf("if you trust who made it: berth image trust "+path,
		"image file:%s was not packed by this berth: the kernel believes what such a file says of itself, and one made to do harm harms the host", path)
}
