package image

import (
	"context"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"berth/internal/image/inflate"
	"berth/internal/sys/refuse"
	"berth/internal/sys/space"
)

// Limits bound what an archive may unpack to, so that a small malicious one cannot fill the disk.
type Limits struct {
	Bytes   int64 // of all layers of one image, unpacked, without the holes of sparse files; each entry counts a block more
	Entries int   // files, folders and links of all layers of one image
	Sparse  int64 // total length of one image's sparse files: holes take time to read, 10 s for 1 TiB
	Kept    int64 // memory for what is remembered of one layer until its end
}

// DefaultLimits are far beyond ordinary images: 64 GiB, 4 million entries, 4 TiB of sparse files, and 128 MiB to remember half a million folders.
func DefaultLimits() Limits {
	return Limits{Bytes: 64 << 30, Entries: 4_000_000, Sparse: 4 << 40, Kept: 128 << 20}
}

// unpacker writes one layer into a folder.
//
// Nothing outside the folder can be changed: the kernel opens the parent folders as if the folder were the root (package inroot).
// Everything else uses the kernel's *at calls on that descriptor, with a name of one component, and never follows a link.
type unpacker struct {
	ctx    context.Context
	in     *inflate.Stream
	root   string   // path of the folder that the layer is unpacked to, for messages and the free space
	top    *os.File // that folder
	plain  bool     // it unpacks a plain root, not a layer: see import_root.go
	out    []string // device nodes that were left out
	left   *Limits  // the rest of the limits; all layers of an image share it
	size   int64    // bytes of files so far
	dir    string   // name of the folder that parent has open
	parent *os.File
	buf    []byte

	folders  map[string]folder
	kept     int64 // bytes of memory that folders takes
	unlisted int   // access control lists that were left out
	unseen   int64 // bytes written since the free space was looked at
}

// folder is what is set of a folder at the end: filling a folder changes its mtime, and its default list would be inherited.
type folder struct {
	times     []unix.Timespec
	inherited []byte // its default list; nil: none
}

// perFolder is about how many bytes the unpacker takes for a folder beside its name and list.
const perFolder = 160

// remember keeps what is set of a folder at the end. It keeps no part of the entry's header, whose texts share the memory of all its records.
func (u *unpacker) remember(name string, f folder) error {
	if u.kept += int64(len(name)+len(f.inherited)) + perFolder; u.kept > u.left.Kept {
		return refuse.Invalidf("the names of the layer's folders take more memory than the limit allows")
	}
	u.folders[strings.Clone(name)] = f
	return nil
}

// blockSize is what the smallest file takes on the disk, in bytes: its inode and its name, or a symbolic link's target.
const blockSize = 4096

// count subtracts one entry from the limits.
func (u *unpacker) count() error {
	if u.left.Entries--; u.left.Entries < 0 {
		return refuse.Invalidf("the image has more files than the limit allows")
	}
	return u.spend(blockSize)
}

// forget closes the parent.
func (u *unpacker) forget() {
	if u.parent != nil {
		u.parent.Close()
		u.parent = nil
	}
}

func (u *unpacker) fd() int { return int(u.parent.Fd()) }

// largeFile is how many bytes are written before the free space is looked at again. A larger file is compared with it before it is written.
const largeFile = 1 << 20

// take subtracts n bytes of a file, which are about to be written, from the limit.
func (u *unpacker) take(n int64) error {
	if n < 0 {
		return refuse.Invalidf("its size is negative")
	}
	u.size += n
	return u.spend(n)
}

// spend subtracts n bytes of the disk, which are about to be written, from the limit.
func (u *unpacker) spend(n int64) error {
	if u.left.Bytes -= n; u.left.Bytes < 0 {
		return refuse.Invalidf("the image unpacks to more bytes than the limit allows")
	}
	if u.unseen += n; u.unseen < largeFile {
		return nil
	}
	n, u.unseen = u.unseen, 0
	return space.Need(u.root, n)
}
