// Package inflate tells how a stream of an image is compressed, and unpacks it within bounds. Only package image uses it, which is large enough
// without it.
package inflate

import (
	"bytes"
	"compress/gzip"
	"encoding/binary"
	"errors"
	"fmt"
	"io"

	"github.com/klauspost/compress/zstd"

	"berth/internal/sys/refuse"
)

// MagicSize is how many bytes at the beginning of a stream tell its compression.
const MagicSize = 6

// Compression detects a stream's compression by its first bytes. A docker archive gives no media types, and they are
// often wrong elsewhere.
func Compression(magic []byte) string {
	switch {
	case bytes.HasPrefix(magic, []byte{0x1f, 0x8b}):
		return "gzip"
	case bytes.HasPrefix(magic, []byte{0x28, 0xb5, 0x2f, 0xfd}):
		return "zstd"
	case len(magic) > 3 && magic[0]&0xf0 == 0x50 && bytes.Equal(magic[1:4], []byte{0x2a, 0x4d, 0x18}):
		return "zstd" // which begins with a frame that decoders pass over (RFC 8878, 3.1.2)
	case bytes.HasPrefix(magic, []byte("\xfd7zXZ\x00")):
		return "xz"
	case bytes.HasPrefix(magic, []byte("BZh")):
		return "bzip2"
	}
	return ""
}

// Reader returns the decompressed stream of r, which may be gzip, zstd or plain. It refuses xz and bzip2.
func Reader(r io.Reader) (io.ReadCloser, error) {
	magic := make([]byte, MagicSize)
	n, err := io.ReadFull(r, magic)
	if err != nil && !errors.Is(err, io.ErrUnexpectedEOF) && err != io.EOF {
		return nil, err
	}
	in := &counter{r: io.MultiReader(bytes.NewReader(magic[:n]), r)}
	r = in
	switch kind := Compression(magic[:n]); kind {
	case "xz", "bzip2":
		return nil, &refuse.Error{
			Kind: refuse.Invalid, What: "it is compressed with " + kind + "; gzip, zstd and none are read", Remedy: "unpack it first: " + kind + " -d",
		}
	case "gzip":
		z, err := gzip.NewReader(r)
		return &growing{ReadCloser: z, in: in, free: freely}, err
	case "zstd":
		// One thread, and a window of at most 128 MiB (the most of zstd --ultra), because the archive chooses its size.
		d, err := zstd.NewReader(r, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxWindow(128<<20))
		if err != nil {
			return nil, err
		}
		return &growing{ReadCloser: zstdReader{d.IOReadCloser()}, in: in, free: freely}, nil
	}
	return io.NopCloser(r), nil
}

// A stream may grow to freely bytes, and beyond that by this factor: gzip's grow by 1,032 at most. What grows more is zeros, for somebody to read
// and write.
const (
	freely     = 4 << 30
	mostGrowth = 2000
)

// growing is an unpacked stream that may not grow for ever.
type growing struct {
	io.ReadCloser
	in   *counter
	out  int64
	free int64
}

func (g *growing) Read(p []byte) (int, error) {
	n, err := g.ReadCloser.Read(p)
	if g.out += int64(n); g.out > g.free && g.out/mostGrowth > g.in.n {
		return 0, &refuse.Error{
			Kind: refuse.Invalid, What: fmt.Sprintf("its first %d KiB unpack to more than %d MiB", g.in.n>>10, g.out>>20),
			Remedy: "if it is to be that large, unpack it first",
		}
	}
	return n, err
}

// counter counts what is read.
type counter struct {
	r io.Reader
	n int64
}

func (c *counter) Read(p []byte) (int, error) {
	n, err := c.r.Read(p)
	c.n += int64(n)
	return n, err
}

// zstdReader says of a stream that zstd's format allows, and that is not read, why.
type zstdReader struct{ io.ReadCloser }

func (z zstdReader) Read(p []byte) (int, error) {
	n, err := z.ReadCloser.Read(p)
	switch {
	case errors.Is(err, zstd.ErrWindowSizeExceeded), errors.Is(err, zstd.ErrDecoderSizeExceeded): // the first is also of a block that is too large for its frame
		err = &refuse.Error{
			Kind: refuse.Invalid, What: "it is damaged, or needs a window of more than 128 MiB to be unpacked", Remedy: "compress it without zstd's --long, or with --long=27 at most",
		}
	case errors.Is(err, zstd.ErrUnknownDictionary):
		err = refuse.Invalidf("it needs zstd's dictionary by which it was compressed: compress it without one")
	}
	return n, err
}

// maxPlain caps the size that a file claims for its content, so that sums do not overflow.
const maxPlain = 16 << 40

// PlainSize returns the decompressed size that a file claims: gzip gives it modulo 4 GiB, zstd mostly not at all. It is
// at least the file's own size. If it is too small, a full disk is only noticed later.
func PlainSize(f io.ReaderAt, size int64) int64 {
	head := make([]byte, zstd.HeaderMaxSize)
	n, _ := f.ReadAt(head, 0) // a read error shows up again when the file is unpacked
	said := uint64(0)
	switch Compression(head[:n]) {
	case "gzip":
		var tail [4]byte
		if n, _ := f.ReadAt(tail[:], size-4); size > 4 && n == 4 {
			said = uint64(binary.LittleEndian.Uint32(tail[:]))
		}
	case "zstd":
		var h zstd.Header
		if h.Decode(head[:n]) == nil && h.HasFCS {
			said = h.FrameContentSize
		}
	}
	return max(size, int64(min(said, maxPlain)))
}
