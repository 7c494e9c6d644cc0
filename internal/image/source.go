package image

import (
	"archive/tar"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"
	"unicode"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"golang.org/x/sys/unix"

	"berth/internal/image/inflate"
	"berth/internal/sys/jsonfile"
	"berth/internal/sys/refuse"
	"berth/internal/sys/space"
	"berth/internal/sys/treetar"
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

// maxOuter is the most entries of an archive's outer tar. Images have a few per layer. maxNames is the most bytes of their names.
const (
	maxOuter = 20_000
	maxNames = 8 << 20
)

// newTarSource indexes an archive. Of a plain one it reads the headers only: archive/tar seeks over the data. A compressed one is first
// unpacked to an unlinked file in tmp, at most limit bytes of it, and refused by the first header that tells of more, or of more than the disk has.
func newTarSource(ctx context.Context, f *os.File, tmp string, limit int64) (*tarSource, error) {
	var magic [inflate.MagicSize]byte
	n, err := io.ReadFull(f, magic[:])
	if err != nil && n == 0 {
		return nil, refuse.Invalidf("the archive is empty or cannot be read: %w", err)
	}
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		return nil, err
	}
	if inflate.Compression(magic[:n]) == "" {
		s := &tarSource{file: f, index: map[string]place{}}
		return s, s.read(f, func(int64) (int64, error) { return f.Seek(0, io.SeekCurrent) })
	}
	if info, err := f.Stat(); err == nil {
		if err := space.Need(tmp, inflate.PlainSize(f, info.Size())); err != nil {
			return nil, err
		}
	}
	r, err := inflate.Reader(inflate.Until(ctx, f))
	if err != nil {
		return nil, archiveErr("the archive", err)
	}
	defer r.Close()
	out, err := os.CreateTemp(tmp, "archive-")
	if err != nil {
		return nil, err
	}
	os.Remove(out.Name()) // the kernel frees it when it is closed, also after a kill
	in := inflate.NewStream(io.TeeReader(r, &inflate.Roomy{To: out, Dir: tmp}))
	s := &tarSource{file: out, index: map[string]place{}}
	err = s.read(in, func(size int64) (int64, error) {
		at := in.N
		if size > limit-at {
			return 0, refuse.Invalidf("the archive unpacks to more than %d bytes", limit)
		}
		in.Most += size + inflate.PerEntry
		if size < largeFile {
			return at, nil
		}
		return at, space.Need(tmp, size)
	})
	if err != nil {
		out.Close()
		return nil, err
	}
	return s, nil
}

// read fills the index from the archive's stream. data is called for each file: it returns the position of the file's data, which are to be
// read next, in the uncompressed archive. Of the headers, whose texts share the memory of all their records, nothing is kept.
func (s *tarSource) read(r io.Reader, data func(size int64) (int64, error)) error {
	t := tar.NewReader(r)
	names := 0
	for n := 0; ; n++ {
		h, err := t.Next()
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return archiveErr("the archive", err)
		}
		if n >= maxOuter {
			return refuse.Invalidf("the archive is no image: it has more than %d files", maxOuter)
		}
		for _, name := range []string{h.Name, h.Linkname} {
			if len(name) > maxPath {
				return entryErr(name, longName(len(name)))
			}
			names += len(name)
		}
		if names > maxNames {
			return refuse.Invalidf("the archive is no image: the names of its files have more than %d MiB", maxNames>>20)
		}
		if treetar.IsSparse(h) {
			return refuse.Invalidf("the archive holds %q as a sparse file: pack it without tar's --sparse", shown(h.Name))
		}
		name := inside(h.Name)
		switch h.Typeflag {
		case tar.TypeReg:
			offset, err := data(h.Size)
			if err != nil {
				return entryErr(h.Name, err)
			}
			s.index[name] = place{offset: offset, size: h.Size}
		case tar.TypeSymlink: // older docker save wrote these for layers that occur twice
			link := h.Linkname
			if !path.IsAbs(link) {
				link = path.Join(path.Dir(name), link)
			}
			s.index[name] = place{link: inside(link)}
		case tar.TypeLink:
			s.index[name] = place{link: inside(h.Linkname)}
		}
	}
}

func (s *tarSource) open(name string) (blob, int64, error) {
	name = inside(name)
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

// openSource opens an archive or a folder: see newTarSource.
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
	var s *tarSource
	if err == nil {
		s, err = newTarSource(ctx, f, tmp, limit)
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	if s.file != f {
		f.Close()
	}
	return s, nil
}

// documents reads the JSON documents of a source: manifests, indexes, configurations.
type documents struct {
	source
	left   int64    // bytes of documents that may still be read: an archive can name one a thousand times
	passed []string // what is no image: media types, with names
	others []found  // some images for other machines, of which nothing was read but the platform
}

// pass notes what was passed over, each kind once, and not very many. Each is one line of a message.
func (d *documents) pass(kind, name string) {
	kind = shown(kind)
	if name != "" {
		kind += " (" + shown(name) + ")"
	}
	kind = strings.Map(func(r rune) rune {
		if unicode.IsControl(r) {
			return ' '
		}
		return r
	}, kind)
	const most = 20
	if !slices.Contains(d.passed, kind) && len(d.passed) <= most {
		d.passed = append(d.passed, kind)
	}
	if len(d.passed) > most {
		d.passed[most] = "and more"
	}
}

// maxDocument is the most bytes of a document, maxDocuments of all that are read of an archive, and minDocument what the smallest one counts.
const (
	maxDocument  = 8 << 20
	maxDocuments = 64 << 20
	minDocument  = 1 << 10
)

// read reads a document into v and returns its digest. want is the expected digest, or "".
func (d *documents) read(name, want string, v any) (string, error) {
	r, size, err := d.open(name)
	if errors.Is(err, fs.ErrNotExist) {
		return "", refuse.Invalidf("the image lacks its file %s", shown(name))
	}
	if err != nil {
		return "", err
	}
	defer r.Close()
	if size > maxDocument {
		return "", refuse.Invalidf("%s has %d bytes: too many for a manifest or configuration", name, size)
	}
	if d.left -= max(size, minDocument); d.left < 0 {
		return "", refuse.Invalidf("the archive's manifests and configurations are documents of more than %d MiB together", maxDocuments>>20)
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
	return digest, jsonfile.Foreign(data, v, name+" of the image")
}

// blob reads a document of an OCI image layout, which its digest names, into v.
func (d *documents) blob(digest v1.Hash, v any) error {
	file, err := blobPath(digest.String())
	if err != nil {
		return err
	}
	_, err = d.read(file, digest.String(), v)
	return err
}
