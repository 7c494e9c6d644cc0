package serve

import (
	"bufio"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"sort"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"berth/internal/sys/treetar"
)

// layer is the tar stream of an unpacked layer. Only its headers are stored, in a file without a name; the data stay in the files
// of the layer. So a blob costs no second copy on the disk, can be read from any byte, and is gone with the process.
type layer struct {
	dir    string
	digest string
	size   int64
	heads  *os.File
	pieces []piece
}

// piece is a part of the stream.
type piece struct {
	at, size int64  // in the stream
	from     int64  // where it begins in its file
	name     string // the layer's file; "": the headers
}

// known is the attribute of a layer's folder that holds what reading all of the layer has shown. It is gone with the layer, and
// invisible inside a node. A layer whose headers are no longer those that it names is read again.
const known = "trusted.berth.blob"

// formed is the version of the streams: it changes when treetar writes another stream for the same tree.
const formed = "1"

// openLayer lists the stream of the layer that is unpacked in dir. Without an attribute it reads all of the layer, for its digest.
// tmp is a folder on which files without a name can be made.
func openLayer(ctx context.Context, dir, tmp string) (*layer, error) {
	l := &layer{dir: dir}
	var err error
	if l.heads, err = os.CreateTemp(tmp, "heads-"); err != nil {
		return nil, err
	}
	_ = os.Remove(l.heads.Name()) // the kernel frees it with its last descriptor, also after a kill
	sum, err := l.list(ctx)
	if err == nil && !l.remembered(sum) {
		err = l.read(ctx, sum)
	}
	if err != nil {
		l.heads.Close()
		return nil, fmt.Errorf("read layer %s: %w", dir, err)
	}
	return l, nil
}

// list writes the headers, and returns their digest. It reads no data.
func (l *layer) list(ctx context.Context) (string, error) {
	top, err := unix.Open(l.dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return "", err
	}
	defer unix.Close(top)
	files, err := treetar.OpenDescriptors()
	if err != nil {
		return "", err
	}
	defer files.Close()
	h := sha256.New()
	buffered := bufio.NewWriterSize(l.heads, 64<<10)
	written := int64(0)
	heads := writer(func(p []byte) (int, error) {
		l.add(piece{size: int64(len(p)), from: written})
		written += int64(len(p))
		h.Write(p)
		return buffered.Write(p)
	})
	tally, err := treetar.Pack(ctx, heads, top, treetar.From{
		Files: files, Layer: true,
		Data: func(name string, at, size int64) error {
			l.add(piece{size: size, from: at, name: name})
			return nil
		},
	})
	if err == nil {
		err = errors.Join(buffered.Flush(), tally.Failed())
	}
	if err == nil && tally.Changed > 0 {
		err = errors.New("it changed meanwhile")
	}
	return hex.EncodeToString(h.Sum(nil)), err
}

// add appends a part. Headers that follow each other are one.
func (l *layer) add(p piece) {
	if p.size == 0 {
		return
	}
	p.at = l.size
	l.size += p.size
	if n := len(l.pieces); n > 0 && p.name == "" && l.pieces[n-1].name == "" {
		l.pieces[n-1].size += p.size
		return
	}
	l.pieces = append(l.pieces, p)
}

// remembered takes the digest from the attribute, if it fits these headers.
func (l *layer) remembered(heads string) bool {
	buf := make([]byte, 256)
	n, err := unix.Lgetxattr(l.dir, known, buf)
	if err != nil {
		return false
	}
	f := strings.Fields(string(buf[:n]))
	if len(f) != 4 || f[0] != formed || f[1] != strconv.FormatInt(l.size, 10) || f[2] != heads {
		return false
	}
	l.digest = f[3]
	return true
}

// read reads the whole stream for its digest, and remembers that.
func (l *layer) read(ctx context.Context, heads string) error {
	r, err := l.open()
	if err != nil {
		return err
	}
	defer r.Close()
	h := sha256.New()
	buf := make([]byte, 1<<20)
	for {
		if err := ctx.Err(); err != nil {
			return err
		}
		n, err := r.Read(buf)
		h.Write(buf[:n])
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return err
		}
	}
	l.digest = "sha256:" + hex.EncodeToString(h.Sum(nil))
	// A file system without such attributes could not hold layers either. If the layer was removed meanwhile, nothing is remembered.
	_ = unix.Lsetxattr(l.dir, known, []byte(strings.Join([]string{formed, strconv.FormatInt(l.size, 10), heads, l.digest}, " ")), 0)
	return nil
}

// open returns the stream from its beginning.
func (l *layer) open() (*reader, error) {
	dir, err := unix.Open(l.dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	return &reader{layer: l, dir: dir}, nil
}

// reader reads a layer's stream. It is an io.ReadSeeker, for one reader at a time.
type reader struct {
	*layer
	dir  int
	at   int64
	file *os.File // of the piece that was read last
	name string
}

func (r *reader) Read(p []byte) (int, error) {
	if r.at >= r.size {
		return 0, io.EOF
	}
	i := sort.Search(len(r.pieces), func(i int) bool { return r.pieces[i].at > r.at }) - 1
	part := r.pieces[i]
	f, err := r.source(part.name)
	if err != nil {
		return 0, err
	}
	skip := r.at - part.at
	n, err := f.ReadAt(p[:min(int64(len(p)), part.size-skip)], part.from+skip)
	r.at += int64(n)
	if n > 0 {
		return n, nil
	}
	if errors.Is(err, io.EOF) {
		err = fmt.Errorf("%s became shorter: %w", part.name, io.ErrUnexpectedEOF)
	}
	return 0, err
}

// source opens the file of a piece.
func (r *reader) source(name string) (*os.File, error) {
	if name == "" {
		return r.heads, nil
	}
	if r.file != nil && r.name == name {
		return r.file, nil
	}
	r.drop()
	fd, err := unix.Openat2(r.dir, name, &unix.OpenHow{
		Flags:   unix.O_RDONLY | unix.O_NONBLOCK | unix.O_NOFOLLOW | unix.O_CLOEXEC,
		Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS,
	})
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: name, Err: err}
	}
	r.file, r.name = os.NewFile(uintptr(fd), name), name
	return r.file, nil
}

func (r *reader) drop() {
	if r.file != nil {
		r.file.Close()
		r.file = nil
	}
}

// Seek sets where the next Read begins.
func (r *reader) Seek(offset int64, whence int) (int64, error) {
	switch whence {
	case io.SeekCurrent:
		offset += r.at
	case io.SeekEnd:
		offset += r.size
	}
	if offset < 0 {
		return 0, errors.New("seek before the beginning")
	}
	r.at = offset
	return offset, nil
}

// Close closes the layer's folder and file. The headers stay open: other readers have them.
func (r *reader) Close() {
	r.drop()
	unix.Close(r.dir)
}

// writer is a function as an io.Writer.
type writer func(p []byte) (int, error)

func (w writer) Write(p []byte) (int, error) { return w(p) }
