package image

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"

	"berth/internal/image/inflate"
	"berth/internal/sys/fault"
)

// layerFile is one layer in a source.
type layerFile struct {
	path   string // name in the source
	digest string // of the file; "" if the archive gives none
	diffID string // digest of the uncompressed tar stream
}

// sizeAttr is the attribute of a layer's folder that holds the bytes of its files. It appears together with the layer
// and is invisible inside a node (trusted attributes need privilege over the host).
const sizeAttr = "trusted.berth.size"

// errGone means that a layer that the store had was removed while others were unpacked.
var errGone = errors.New("a layer was removed meanwhile")

// keep moves an image's new layers into the store and writes its record. It first syncs the layers to disk, without the lock: a power
// cut must not keep the rename and lose the files.
func (s Store) keep(ctx context.Context, made map[string]string, r Record) (Record, error) {
	d, err := os.Open(s.layers())
	if err != nil {
		return Record{}, err
	}
	defer d.Close()
	if len(made) > 0 {
		if err := unix.Syncfs(int(d.Fd())); err != nil {
			return Record{}, fmt.Errorf("write layers to disk: %w", err)
		}
	}
	unlock, err := s.lock(ctx)
	if err != nil {
		return Record{}, err
	}
	defer unlock()
	for _, digest := range r.Layers {
		if made[digest] == "" && !s.has(digest) {
			return Record{}, errGone
		}
	}
	if err := s.place(made, d); err != nil {
		return Record{}, err
	}
	for _, digest := range r.Layers {
		size, err := s.layerSize(digest)
		if err != nil {
			return Record{}, err
		}
		r.Size += size
	}
	return r, s.write(r)
}

// place moves new layers into the store's open folder of layers.
func (s Store) place(made map[string]string, layers *os.File) error {
	for digest, tmp := range made {
		hex, err := parseDigest(digest)
		if err != nil {
			return err
		}
		if s.has(digest) {
			continue // of a plain root, whose digest is known only now
		}
		if err := os.Rename(tmp, s.layer(hex)); err != nil {
			return fmt.Errorf("put layer %s in place: %w", hex, err)
		}
		fault.Point("layer placed")
	}
	return layers.Sync()
}

// layer unpacks the layer read from r into dir and verifies the digests that l gives. It returns the digest of the
// uncompressed stream.
func (u *unpacker) layer(ctx context.Context, dir string, r io.Reader, l layerFile, left *Limits) (string, error) {
	if err := os.Chmod(dir, 0o755); err != nil {
		return "", err
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return "", err
	}
	defer root.Close()
	packed := newDigestReader(inflate.Until(ctx, r))
	stream, err := inflate.Reader(packed)
	if err != nil {
		return "", archiveErr("its compression", err)
	}
	defer stream.Close()
	plain := newDigestReader(stream)
	if err := u.unpack(ctx, root, plain, left); err != nil {
		return "", err
	}
	digest, err := plain.check("its content", l.diffID)
	if err == nil && l.digest != "" {
		_, err = packed.check("its file", l.digest)
	}
	if err != nil {
		return "", err
	}
	d, err := root.Open(".")
	if err != nil {
		return "", err
	}
	defer d.Close()
	return digest, setAttr(int(d.Fd()), sizeAttr, strconv.FormatInt(u.size, 10))
}

// layerSize returns the bytes of a layer's files.
func (s Store) layerSize(digest string) (int64, error) {
	hex, err := parseDigest(digest)
	if err != nil {
		return 0, err
	}
	buf := make([]byte, 32)
	n, err := unix.Lgetxattr(s.layer(hex), sizeAttr, buf)
	if err != nil {
		return 0, &fs.PathError{Op: "read size of", Path: filepath.Join("layer", hex), Err: err}
	}
	return strconv.ParseInt(string(buf[:n]), 10, 64)
}

// meter counts the bytes read of an image's layers.
type meter struct {
	done, total int64
	report      func(done, total int64)
}

func (m *meter) Write(p []byte) (int, error) {
	m.add(int64(len(p)))
	return len(p), nil
}

func (m *meter) add(n int64) {
	m.done += n
	if m.report != nil {
		m.report(m.done, m.total)
	}
}
