package image

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"

	"github.com/klauspost/compress/zstd"
	"golang.org/x/sys/unix"

	"berth/internal/refuse"
	"berth/internal/space"
)

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

// needSpace refuses work that needs more bytes than are free on dir's file system.
func needSpace(dir string, need int64) error {
	var fs unix.Statfs_t
	if err := unix.Statfs(dir, &fs); err != nil {
		return fmt.Errorf("read the free space of %s: %w", dir, err)
	}
	free := freeBytes(&fs)
	if need <= free {
		return nil
	}
	return refuse.Cannotf(moreSpace, "it needs %d MiB, and %s has %d MiB free", (need-1)>>20+1, space.FileSystem(dir), free>>20)
}

// largeFile is the size in bytes from which a file is checked against the free space before it is written.
const largeFile = 1 << 20

// take subtracts n bytes, which are about to be written, from the limit.
func (u *unpacker) take(n int64) error {
	if u.left.Bytes -= n; n < 0 || u.left.Bytes < 0 {
		return refuse.Invalidf("the image unpacks to more bytes than the limit allows")
	}
	u.size += n
	if n < largeFile {
		return nil
	}
	return needSpace(u.root.Name(), n)
}

const moreSpace = "remove images (berth image rm) or nodes that are not needed, or keep Berth's files elsewhere (--root)"

// freeBytes returns the free bytes, without those reserved for root. A file system that counts no blocks (ramfs) has no
// limit.
func freeBytes(fs *unix.Statfs_t) int64 {
	if fs.Blocks == 0 || fs.Bsize <= 0 || fs.Bavail > math.MaxInt64/uint64(fs.Bsize) {
		return math.MaxInt64
	}
	return int64(fs.Bavail) * fs.Bsize
}

// fullErr turns ENOSPC and EDQUOT into a refusal that names dir's file system.
func fullErr(dir string, err error) error {
	if !errors.Is(err, unix.ENOSPC) && !errors.Is(err, unix.EDQUOT) {
		return err
	}
	return refuse.Cannotf(moreSpace, "%s is full: %w", space.FileSystem(dir), err)
}
