package treetar

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"time"

	"golang.org/x/sys/unix"

	"berth/internal/sys/refuse"
)

// From says how a tree becomes a stream.
type From struct {
	Files    Descriptors
	Top      string                 // name of the top in the stream; "" for the content of a folder
	Bare     bool                   // take of a mount below the top only its place, as an empty file or folder
	Owners   bool                   // count files whose owners no image can have
	Harmless bool                   // leave out set-user-id and set-group-id bits, and file capabilities
	Progress func(bytes, all int64) // called as data is read; nil: not called
	Measure  bool                   // tell Progress how much all is: reads the whole tree twice, its data once
	Layer    bool                   // write an image's layer: names in order, and overlay's marks of removed entries as white-outs

	// Data is called where the data of a file would be written: of the file with that name in the stream, from at, size bytes.
	// nil: the data are read and written.
	Data func(name string, at, size int64) error
}

// batch is how many names of a folder are read at a time, so that a huge folder needs no memory.
const batch = 1024

// Pack writes the file or folder behind top, a descriptor made with O_PATH, to w. Devices and sockets are left out, and so is
// the content of the kernel's own file systems. Files that cannot be read are counted; the rest is written.
func Pack(ctx context.Context, w io.Writer, top int, from From) (Tally, error) {
	p := &packer{ctx: ctx, w: w, t: tar.NewWriter(w), all: from.Files, from: from, links: map[inode]string{}, buf: make([]byte, 256<<10)}
	var st unix.Statx_t
	if err := stat(top, &st); err != nil {
		return p.tally, err
	}
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFREG, unix.S_IFDIR, unix.S_IFLNK, unix.S_IFIFO:
	default:
		return p.tally, refuse.Invalidf("it is a device or a socket, which is not copied")
	}
	if kernelOwn(top) {
		return p.tally, refuse.Invalidf("it belongs to the kernel (proc, sysfs …) and has no content to copy; berth exec NAME -- cat reads it")
	}
	name := from.Top
	if name == "" {
		if st.Mode&unix.S_IFMT != unix.S_IFDIR {
			return p.tally, refuse.Invalidf("it is no folder")
		}
		name = "."
	}
	if from.Measure {
		p.measure(top, &st, nil)
	}
	if err := p.entry(top, name, &st); err != nil {
		return p.tally, err
	}
	if err := p.t.Close(); err != nil {
		return p.tally, fmt.Errorf("write the stream: %w", err)
	}
	return p.tally, nil
}

// inode identifies a file.
type inode struct {
	major, minor uint32
	ino          uint64
}

func inodeOf(st *unix.Statx_t) inode { return inode{st.Dev_major, st.Dev_minor, st.Ino} }

type packer struct {
	ctx   context.Context
	w     io.Writer
	t     *tar.Writer
	all   Descriptors
	from  From
	links map[inode]string // files with several names: the name written
	trail []inode          // the folders on the way to here
	tally Tally
	total int64
	buf   []byte
}

// entry writes the file behind a descriptor, and the content of a folder.
func (p *packer) entry(fd int, name string, st *unix.Statx_t) error {
	if err := p.ctx.Err(); err != nil {
		return err
	}
	if p.from.Bare && len(p.trail) > 0 && st.Attributes&unix.STATX_ATTR_MOUNT_ROOT != 0 {
		return p.place(name, st)
	}
	h := &tar.Header{
		Name: name, Mode: int64(st.Mode & 0o7777), Uid: int(st.Uid), Gid: int(st.Gid),
		ModTime: time.Unix(st.Mtime.Sec, int64(st.Mtime.Nsec)), Format: tar.FormatPAX, PAXRecords: map[string]string{},
	}
	if p.from.Harmless && st.Mode&unix.S_IFMT == unix.S_IFREG && h.Mode&(unix.S_ISUID|unix.S_ISGID) != 0 {
		h.Mode &^= unix.S_ISUID | unix.S_ISGID
		p.tally.SetID++
	}
	if p.from.Owners && max(st.Uid, st.Gid) > MostImageID {
		p.tally.Owners++
	}
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFREG, unix.S_IFLNK, unix.S_IFIFO:
		if st.Nlink > 1 {
			if first, known := p.links[inodeOf(st)]; known {
				h.Typeflag, h.Linkname = tar.TypeLink, first
				return p.header(h)
			}
			p.links[inodeOf(st)] = name
		}
	}
	written := p.tally.Entries
	defer func() {
		if p.tally.Entries == written { // it could not be read: no later name may link to it
			delete(p.links, inodeOf(st))
		}
	}()
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFREG:
		return p.file(fd, h, st)
	case unix.S_IFDIR:
		return p.folder(fd, h, st)
	case unix.S_IFLNK:
		target, err := readlink(fd)
		if err != nil {
			return p.unreadable(name, err)
		}
		h.Typeflag, h.Linkname, h.Mode = tar.TypeSymlink, target, 0o777
		return p.header(h)
	case unix.S_IFIFO:
		h.Typeflag = tar.TypeFifo
		return p.header(h)
	case unix.S_IFSOCK:
		p.tally.Sockets++
	case unix.S_IFCHR:
		if p.from.Layer && st.Rdev_major == 0 && st.Rdev_minor == 0 {
			return p.whiteout(path.Join(path.Dir(name), ".wh."+path.Base(name)))
		}
		p.tally.Devices++
	default:
		p.tally.Devices++
	}
	return nil
}

// place writes the place of a mount, empty. The file or folder below the mount, and its owner, cannot be seen.
func (p *packer) place(name string, st *unix.Statx_t) error {
	h := &tar.Header{Name: name, Typeflag: tar.TypeReg, Mode: 0o644, ModTime: time.Unix(st.Mtime.Sec, 0), Format: tar.FormatPAX}
	if st.Mode&unix.S_IFMT == unix.S_IFDIR {
		h.Name, h.Typeflag, h.Mode = name+"/", tar.TypeDir, 0o755
	}
	return p.header(h)
}

func (p *packer) header(h *tar.Header) error {
	p.tally.Entries++
	t := p.t
	if p.from.Data != nil { // a writer of its own: it would wait for the data
		t = tar.NewWriter(p.w)
	}
	if err := t.WriteHeader(h); err != nil {
		return fmt.Errorf("write the entry %q: %w", h.Name, err)
	}
	return nil
}

// unreadable counts a file that cannot be read, or that vanished. Errors that are not the file's own end the copy.
func (p *packer) unreadable(name string, err error) error {
	switch {
	case errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ESTALE):
		p.tally.Changed++
		return nil
	case errors.Is(err, unix.EMFILE) || errors.Is(err, unix.ENFILE):
		return fmt.Errorf("read %q: folders are nested deeper than this process may have open files: %w", name, err)
	}
	if p.tally.Unreadable++; p.tally.First == "" {
		p.tally.First = fmt.Sprintf("%q: %v", name, err)
	}
	return nil
}

// folder writes a folder and its content.
func (p *packer) folder(fd int, h *tar.Header, st *unix.Statx_t) error {
	name := h.Name
	h.Typeflag, h.Name = tar.TypeDir, name+"/"
	for _, above := range p.trail {
		if above == inodeOf(st) {
			p.tally.Loops++
			return nil
		}
	}
	f, err := p.all.Open(fd, unix.O_RDONLY|unix.O_DIRECTORY)
	if err != nil {
		return p.unreadable(name, err)
	}
	defer f.Close()
	p.attrs(int(f.Fd()), h)
	if err := p.header(h); err != nil {
		return err
	}
	if st.Attributes&unix.STATX_ATTR_MOUNT_ROOT != 0 && kernelOwn(fd) {
		p.tally.Kernel++
		return nil
	}
	if p.from.Layer && isOpaque(int(f.Fd())) {
		if err := p.whiteout(path.Join(name, ".wh..wh..opq")); err != nil {
			return err
		}
	}
	p.trail = append(p.trail, inodeOf(st))
	defer func() { p.trail = p.trail[:len(p.trail)-1] }()
	walk := each
	if p.from.Layer {
		walk = inOrder
	}
	return walk(f, func(child string) error {
		below := child
		if name != "." {
			below = name + "/" + child
		}
		cfd, cst, err := Look(int(f.Fd()), child)
		if err != nil {
			return p.unreadable(below, err)
		}
		defer unix.Close(cfd)
		return p.entry(cfd, below, &cst)
	}, func(err error) error { return p.unreadable(name, err) })
}

// each calls do with the names in a folder, and failed with an error of reading it.
func each(f *os.File, do func(name string) error, failed func(error) error) error {
	for {
		names, err := f.Readdirnames(batch)
		for _, n := range names {
			if err := do(n); err != nil {
				return err
			}
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return failed(err)
		}
	}
}

// file writes a regular file.
func (p *packer) file(fd int, h *tar.Header, st *unix.Statx_t) error {
	f, err := p.all.Open(fd, unix.O_RDONLY)
	if err != nil {
		return p.unreadable(h.Name, err)
	}
	defer f.Close()
	p.attrs(int(f.Fd()), h)
	size, others := int64(st.Size), int64(0)
	if len(h.PAXRecords) > 0 { // a block of its attributes may count as one of the file's
		others = holeBlock
	}
	if size > 0 && int64(st.Blocks)*512 < size+others {
		parts, err := extents(f, size)
		if err != nil {
			return p.unreadable(h.Name, err)
		}
		if len(parts) != 1 || parts[0] != (extent{0, size}) {
			return p.sparse(f, h, size, parts)
		}
	}
	h.Typeflag, h.Size = tar.TypeReg, size
	if err := p.header(h); err != nil {
		return err
	}
	if p.from.Data == nil {
		return p.data(io.NewSectionReader(f, 0, size), p.t, h.Name, size) // extents has moved f's own place
	}
	if err := p.from.Data(h.Name, 0, size); err != nil {
		return err
	}
	return p.pad(size)
}

// pad writes the zeros that follow so many bytes of data.
func (p *packer) pad(size int64) error {
	if _, err := p.w.Write(make([]byte, padding(size))); err != nil {
		return fmt.Errorf("write the stream: %w", err)
	}
	return nil
}

// data writes so many bytes of a file. Of a file that became shorter the rest is zeros: its size is in the stream already.
func (p *packer) data(f io.Reader, to io.Writer, name string, left int64) error {
	for left > 0 {
		if err := p.ctx.Err(); err != nil {
			return err
		}
		part := p.buf[:min(int64(len(p.buf)), left)]
		n, err := io.ReadFull(f, part)
		if err != nil {
			if !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
				if err := p.unreadable(name, err); err != nil {
					return err
				}
			} else {
				p.tally.Changed++
			}
			clear(part[n:])
			f = zeros{}
		}
		if _, err := to.Write(part); err != nil {
			return fmt.Errorf("write the stream: %w", err)
		}
		left -= int64(len(part))
		p.tally.Bytes += int64(len(part))
		if p.from.Progress != nil {
			p.from.Progress(p.tally.Bytes, p.total)
		}
	}
	return nil
}

// zeros is an endless file of zeros.
type zeros struct{}

func (zeros) Read(b []byte) (int, error) {
	clear(b)
	return len(b), nil
}

func readlink(fd int) (string, error) {
	buf := make([]byte, unix.PathMax)
	n, err := unix.Readlinkat(fd, "", buf)
	if err != nil {
		return "", err
	}
	return string(buf[:n]), nil
}

// measure sums up the data of a tree for Progress. Files that cannot be read are not counted.
func (p *packer) measure(fd int, st *unix.Statx_t, trail []inode) {
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFREG:
		p.total += min(int64(st.Size), int64(st.Blocks)*512)
	case unix.S_IFDIR:
		for _, above := range trail {
			if above == inodeOf(st) {
				return
			}
		}
		if p.ctx.Err() != nil || st.Attributes&unix.STATX_ATTR_MOUNT_ROOT != 0 && kernelOwn(fd) {
			return
		}
		f, err := p.all.Open(fd, unix.O_RDONLY|unix.O_DIRECTORY)
		if err != nil {
			return
		}
		defer f.Close()
		_ = each(f, func(child string) error {
			if cfd, cst, err := Look(int(f.Fd()), child); err == nil {
				p.measure(cfd, &cst, append(trail, inodeOf(st)))
				unix.Close(cfd)
			}
			return nil
		}, func(error) error { return nil })
	}
}

// TopName returns the name that a copy of a path has: its last part, "" if it ends with "/." or is a root: then the content of the
// folder is meant.
func TopName(p string) string {
	if p == "" || path.Clean("/"+p) == "/" || path.Base(p) == "." || path.Base(p) == ".." || len(p) > 1 && p[len(p)-2:] == "/." {
		return ""
	}
	return path.Base(p)
}
