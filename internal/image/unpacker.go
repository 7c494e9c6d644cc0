package image

import (
	"archive/tar"
	"context"
	"io"
	"os"

	"berth/internal/sys/refuse"
	"berth/internal/sys/space"
)

// Limits bound what an archive may unpack to, so that a small malicious one cannot fill the disk.
type Limits struct {
	Bytes   int64 // of all layers of one image, unpacked, without the holes of sparse files
	Entries int   // files, folders and links of all layers of one image
	Sparse  int64 // total length of one image's sparse files: holes take time to read, 10 s for 1 TiB
}

// DefaultLimits are far beyond ordinary images: 64 GiB, 4 million entries and 4 TiB of sparse files.
func DefaultLimits() Limits { return Limits{Bytes: 64 << 30, Entries: 4_000_000, Sparse: 4 << 40} }

// unpacker writes one layer into a folder.
//
// Nothing outside the folder can be changed: os.Root opens the parent folders and refuses every path that leaves the
// folder, also by symbolic links. Everything else uses the kernel's *at calls on that descriptor, with a name of one
// component, and never follows a link.
type unpacker struct {
	ctx    context.Context
	in     *counter // the uncompressed stream
	root   *os.Root
	plain  bool     // it unpacks a plain root, not a layer: see import_root.go
	out    []string // device nodes that were left out
	left   *Limits  // the rest of the limits; all layers of an image share it
	size   int64    // bytes of files so far
	dir    string   // name of the folder that parent has open
	parent *os.File
	buf    []byte

	folders  map[string]*tar.Header // mtimes and default lists of folders, set at the end: filling a folder changes its mtime, and its default list would be inherited
	unlisted int                    // access control lists that were left out
}

// count subtracts one entry from the limit.
func (u *unpacker) count() error {
	if u.left.Entries--; u.left.Entries < 0 {
		return refuse.Invalidf("the image has more files than the limit allows")
	}
	return nil
}

// forget closes the parent.
func (u *unpacker) forget() {
	if u.parent != nil {
		u.parent.Close()
		u.parent = nil
	}
}

func (u *unpacker) fd() int { return int(u.parent.Fd()) }

// counter counts the bytes read from a stream.
type counter struct {
	r io.Reader
	n int64
}

func (c *counter) Read(p []byte) (int, error) {
	n, err := c.r.Read(p)
	c.n += int64(n)
	return n, err
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
	return space.Need(u.root.Name(), n)
}
