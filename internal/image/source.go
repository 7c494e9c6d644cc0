package image

import (
	"archive/tar"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"os"
	"path"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"golang.org/x/sys/unix"

	"berth/internal/sys/jsonfile"
	"berth/internal/sys/refuse"
	"berth/internal/sys/space"
)

// source is the place that an image is read from: a folder, or a tar file that is read without unpacking it.
type source interface {
	// open opens a file by its name relative to the source and returns its size in bytes. The error is fs.ErrNotExist if
	// it is not there.
	open(name string) (blob, int64, error)
	close() error
}

// blob is an open file of a source.
type blob interface {
	io.ReadCloser
	io.ReaderAt
}

// section is a blob that is part of a tar file.
type section struct{ *io.SectionReader }

func (section) Close() error { return nil }

// folderSource reads a folder and never leaves it.
type folderSource struct{ root *os.Root }

func (s folderSource) open(name string) (blob, int64, error) {
	f, err := s.root.OpenFile(name, os.O_RDONLY|unix.O_NONBLOCK, 0) // opening a FIFO must not block
	if err != nil {
		return nil, 0, err
	}
	info, err := f.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = refuse.Invalidf("%s is not a regular file", name)
	}
	if err != nil {
		f.Close()
		return nil, 0, err
	}
	return f, info.Size(), nil
}

func (s folderSource) close() error { return s.root.Close() }

// tarSource reads an uncompressed tar file by an index of its entries.
type tarSource struct {
	file  *os.File
	index map[string]place
}

// place is the position of an entry's data in the file, or the name that the entry links to.
type place struct {
	offset, size int64
	link         string
}

// maxOuter is the most entries of an archive's outer tar. Images have a few per layer.
const maxOuter = 20_000

// newTarSource indexes a tar file. It reads the headers only: archive/tar seeks over the data.
func newTarSource(f *os.File) (*tarSource, error) {
	s := &tarSource{file: f, index: map[string]place{}}
	t := tar.NewReader(f)
	for {
		h, err := t.Next()
		if err == io.EOF {
			return s, nil
		}
		if err != nil {
			return nil, archiveErr("the archive", err)
		}
		if len(s.index) >= maxOuter {
			return nil, refuse.Invalidf("the archive is no image: it has more than %d files", maxOuter)
		}
		name := path.Clean(h.Name)
		if isSparse(h) {
			return nil, refuse.Invalidf("the archive holds %q as a sparse file: pack it without tar's --sparse", h.Name)
		}
		switch h.Typeflag {
		case tar.TypeReg:
			offset, err := f.Seek(0, io.SeekCurrent)
			if err != nil {
				return nil, err
			}
			s.index[name] = place{offset: offset, size: h.Size}
		case tar.TypeSymlink: // older docker save wrote these for layers that occur twice
			s.index[name] = place{link: path.Join(path.Dir(name), h.Linkname)}
		case tar.TypeLink:
			s.index[name] = place{link: path.Clean(h.Linkname)}
		}
	}
}

func (s *tarSource) open(name string) (blob, int64, error) {
	name = path.Clean(name)
	for range 8 {
		p, ok := s.index[name]
		if !ok {
			break
		}
		if p.link == "" {
			return section{io.NewSectionReader(s.file, p.offset, p.size)}, p.size, nil
		}
		name = p.link
	}
	return nil, 0, fs.ErrNotExist
}

func (s *tarSource) close() error { return s.file.Close() }

// openSource opens an archive or a folder. It first decompresses a compressed archive into tmp, at most limit bytes.
func openSource(ctx context.Context, archive, tmp string, limit int64) (source, error) {
	f, err := os.OpenFile(archive, os.O_RDONLY|unix.O_NONBLOCK, 0) // opening a FIFO must not block
	if errors.Is(err, fs.ErrNotExist) {
		return nil, refuse.NotFoundf("there is no archive %s", archive)
	}
	if err != nil {
		return nil, err
	}
	info, err := f.Stat()
	if err == nil && info.IsDir() {
		f.Close()
		root, err := os.OpenRoot(archive)
		return folderSource{root}, err
	}
	if err == nil && !info.Mode().IsRegular() {
		err = refuse.Invalidf("%s is neither a file nor a folder: what comes from a pipe must be written to a file first", archive)
	}
	var plain *os.File
	if err == nil {
		plain, err = inflate(ctx, f, tmp, limit)
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	if plain != f {
		f.Close()
	}
	s, err := newTarSource(plain)
	if err != nil {
		plain.Close()
		return nil, err
	}
	return s, nil
}

// inflate returns f itself, at its start, if f is not compressed; else an unlinked temporary file with its decompressed
// content.
func inflate(ctx context.Context, f *os.File, tmp string, limit int64) (*os.File, error) {
	var magic [6]byte
	n, err := io.ReadFull(f, magic[:])
	if err != nil && n == 0 {
		return nil, refuse.Invalidf("the archive is empty or cannot be read: %w", err)
	}
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		return nil, err
	}
	if compression(magic[:n]) == "" {
		return f, nil
	}
	if info, err := f.Stat(); err == nil {
		if err := space.Need(tmp, plainSize(f, info.Size())); err != nil {
			return nil, err
		}
	}
	r, err := decompress(ctxReader{ctx, f})
	if err != nil {
		return nil, archiveErr("the archive", err)
	}
	defer r.Close()
	out, err := os.CreateTemp(tmp, "archive-")
	if err != nil {
		return nil, err
	}
	os.Remove(out.Name()) // the kernel frees it when it is closed, also after a kill
	copied, err := io.Copy(out, io.LimitReader(r, limit+1))
	if err == nil && copied > limit {
		err = refuse.Invalidf("the archive unpacks to more than %d bytes", limit)
	}
	if err == nil {
		_, err = out.Seek(0, io.SeekStart)
	}
	if err != nil {
		out.Close()
		return nil, archiveErr("the archive", err)
	}
	return out, nil
}

// maxDocument is the most bytes of a manifest, index or configuration.
const maxDocument = 8 << 20

// readDocument reads a JSON document of the source into v and returns its digest. want is the expected digest, or "".
func readDocument(s source, name, want string, v any) (string, error) {
	r, size, err := s.open(name)
	if errors.Is(err, fs.ErrNotExist) {
		return "", refuse.Invalidf("the image lacks its file %s", name)
	}
	if err != nil {
		return "", err
	}
	defer r.Close()
	if size > maxDocument {
		return "", refuse.Invalidf("%s has %d bytes: too many for a manifest or configuration", name, size)
	}
	data, err := io.ReadAll(io.LimitReader(r, maxDocument))
	if err != nil {
		return "", archiveErr(name, err)
	}
	sum := sha256.Sum256(data)
	digest := "sha256:" + hex.EncodeToString(sum[:])
	if want != "" && want != digest {
		return "", refuse.Invalidf("%s is damaged: its digest is %s", name, digest)
	}
	if err := json.Unmarshal(data, v); err != nil {
		return "", refuse.Invalidf("%s of the image cannot be read: %s", name, jsonfile.Wrong(data, err))
	}
	return digest, nil
}

// readBlob reads a JSON document of an OCI image layout, which its digest names, into v.
func readBlob(s source, digest v1.Hash, v any) error {
	file, err := blobPath(digest.String())
	if err != nil {
		return err
	}
	_, err = readDocument(s, file, digest.String(), v)
	return err
}

// ctxReader stops reading when its context ends.
type ctxReader struct {
	ctx context.Context
	r   io.Reader
}

func (c ctxReader) Read(p []byte) (int, error) {
	if err := c.ctx.Err(); err != nil {
		return 0, err
	}
	return c.r.Read(p)
}
