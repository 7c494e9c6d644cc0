package image

import (
	"archive/tar"
	"bytes"
	"io"
	"os"

	"berth/internal/sys/refuse"
)

// holeBlock is the unit, in bytes, in which zeros of a sparse file become holes: the block size of most file systems.
const holeBlock = 4096

// takeSparse subtracts the length of a file with holes from the limit.
func (u *unpacker) takeSparse(n int64) error {
	if u.left.Sparse -= n; n < 0 || u.left.Sparse < 0 {
		return refuse.Invalidf("the image's sparse files are longer than the limit allows")
	}
	return nil
}

// sparse writes a file with holes. archive/tar does not expose the map of holes; it reads them as zeros (at 100 GB/s).
// A read that consumed nothing from the stream lay in a hole. In other reads, each block of zeros becomes a hole.
func (u *unpacker) sparse(f *os.File, h *tar.Header, r io.Reader) error {
	zeros := make([]byte, holeBlock)
	for at := int64(0); at < h.Size; {
		if err := u.ctx.Err(); err != nil {
			return err
		}
		before := u.in.N
		n, err := io.ReadFull(r, u.buf[:min(int64(len(u.buf)), h.Size-at)])
		if err != nil {
			return archiveErr("its data", err)
		}
		for i := 0; u.in.N != before && i < n; i += holeBlock {
			block := u.buf[i:min(i+holeBlock, n)]
			if bytes.Equal(block, zeros[:len(block)]) {
				continue
			}
			if err := u.take(int64(len(block))); err != nil {
				return err
			}
			if _, err := f.WriteAt(block, at+int64(i)); err != nil {
				return err
			}
		}
		at += int64(n)
	}
	return f.Truncate(h.Size)
}
