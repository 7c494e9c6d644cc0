package image

import (
	"bytes"
	"compress/gzip"
	"encoding/binary"
	"errors"
	"io"

	"github.com/klauspost/compress/zstd"

	"berth/internal/sys/refuse"
)

// compression detects a stream's compression by its first bytes. A docker archive gives no media types, and they are
// often wrong elsewhere.
func compression(magic []byte) string {
	switch {
	case bytes.HasPrefix(magic, []byte{0x1f, 0x8b}):
		return "gzip"
	case bytes.HasPrefix(magic, []byte{0x28, 0xb5, 0x2f, 0xfd}):
		return "zstd"
	case bytes.HasPrefix(magic, []byte("\xfd7zXZ\x00")):
		return "xz"
	case bytes.HasPrefix(magic, []byte("BZh")):
		return "bzip2"
	}
	return ""
}

// decompress returns the decompressed stream of r, which may be gzip, zstd or plain. It refuses xz and bzip2.
func decompress(r io.Reader) (io.ReadCloser, error) {
	magic := make([]byte, 6)
	n, err := io.ReadFull(r, magic)
	if err != nil && !errors.Is(err, io.ErrUnexpectedEOF) && err != io.EOF {
		return nil, err
	}
	r = io.MultiReader(bytes.NewReader(magic[:n]), r)
	switch kind := compression(magic[:n]); kind {
	case "xz", "bzip2":
		return nil, &refuse.Error{
			Kind: refuse.Invalid, What: "it is compressed with " + kind + "; gzip, zstd and none are read", Remedy: "unpack it first: " + kind + " -d",
		}
	case "gzip":
		return gzip.NewReader(r)
	case "zstd":
		// One thread, and a window of at most 128 MiB (the most of zstd --ultra), because the archive chooses its size.
		d, err := zstd.NewReader(r, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxWindow(128<<20))
		if err != nil {
			return nil, err
		}
		return d.IOReadCloser(), nil
	}
	return io.NopCloser(r), nil
}

// maxPlain caps the size that a file claims for its content, so that sums do not overflow.
const maxPlain = 16 << 40

// plainSize returns the decompressed size that a file claims: gzip gives it modulo 4 GiB, zstd mostly not at all. It is
// at least the file's own size. If it is too small, a full disk is only noticed later.
func plainSize(f io.ReaderAt, size int64) int64 {
	head := make([]byte, zstd.HeaderMaxSize)
	n, _ := f.ReadAt(head, 0) // a read error shows up again when the file is unpacked
	said := uint64(0)
	switch compression(head[:n]) {
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
