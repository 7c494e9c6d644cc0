package image

import (
	"context"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"

	"berth/internal/sys/fault"
	"berth/internal/sys/refuse"
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

// place moves new layers into the store, after it synced them to disk: a power cut must not keep the rename and lose
// the files.
func (s Store) place(made map[string]string) error {
	if len(made) == 0 {
		return nil
	}
	d, err := os.Open(s.layers())
	if err != nil {
		return err
	}
	defer d.Close()
	if err := unix.Syncfs(int(d.Fd())); err != nil {
		return fmt.Errorf("write layers to disk: %w", err)
	}
	for digest, tmp := range made {
		hex, err := parseDigest(digest)
		if err != nil {
			return err
		}
		if err := os.Rename(tmp, s.layer(hex)); err != nil {
			return fmt.Errorf("put layer %s in place: %w", hex, err)
		}
		fault.Point("layer placed")
	}
	return d.Sync()
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
	packed := newDigestReader(ctxReader{ctx, r})
	stream, err := decompress(packed)
	if err != nil {
		return "", archiveErr("its compression", err)
	}
	defer stream.Close()
	plain := newDigestReader(&limitReader{stream, left.Bytes + 512*int64(left.Entries)})
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

// limitReader refuses a stream that is longer than an image may be. A stream can be endless without unpacking to any
// file.
type limitReader struct {
	r    io.Reader
	left int64
}

func (l *limitReader) Read(p []byte) (int, error) {
	n, err := l.r.Read(p)
	if l.left -= int64(n); l.left < 0 {
		return 0, refuse.Invalidf("the image unpacks to more bytes than the limit allows")
	}
	return n, err
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
