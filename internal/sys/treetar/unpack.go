package treetar

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"berth/internal/sys/refuse"
)

// To says how a stream becomes a tree.
type To struct {
	Files Descriptors
	// Place is given the first entry, and says where the tree goes: into an open folder, which Unpack closes, under the name as.
	// "" for as keeps the names of the stream; else all of it must have the name Top, which as replaces.
	Place    func(first *tar.Header) (dir int, as string, err error)
	Top      string
	Owners   bool // keep owners and access control lists; else all belongs to UID and GID
	UID, GID int
	Harmless bool // leave out set-user-id and set-group-id bits, and file capabilities
	Progress func(bytes, all int64)
}

// Unpack writes the tree of the stream r. A folder that exists keeps its owner, mode and times; a file that exists is replaced,
// whole, when the new one is complete. A folder is not replaced by a file, nor the other way round. Devices are left out.
//
// The top of a tree that has a name is no link: it might have been made by a node, and who uses the copy would be led elsewhere.
//
// Errors: refuse.Invalid for a stream that is no tar or tries to leave the target, refuse.Busy if something is in the way.
func Unpack(ctx context.Context, r io.Reader, to To) (Tally, error) {
	in := &Counter{R: r}
	u := &unpacker{ctx: ctx, in: in, to: to, all: to.Files, buf: make([]byte, 256<<10)}
	defer u.close()
	t := tar.NewReader(in)
	for {
		h, err := t.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return u.tally, streamErr(err)
		}
		if h.Typeflag == tar.TypeXGlobalHeader {
			continue
		}
		if u.dirs == nil {
			if u.base, u.as, err = to.Place(h); err != nil {
				return u.tally, err
			}
			u.dirs = []opened{} // not nil: the place is known
		}
		if err := u.entry(h, t); err != nil {
			return u.tally, entryErr(h.Name, err)
		}
	}
	if u.dirs == nil {
		return u.tally, refuse.Invalidf("the stream holds nothing")
	}
	if err := u.finish(0); err != nil {
		return u.tally, err
	}
	_, err := io.Copy(io.Discard, r) // zeros after the end: their writer must not get SIGPIPE
	return u.tally, err
}

func streamErr(err error) error {
	if errors.Is(err, tar.ErrHeader) || errors.Is(err, tar.ErrFieldTooLong) || errors.Is(err, io.ErrUnexpectedEOF) {
		return refuse.Invalidf("it is not a tar stream, or one that is damaged or cut off: %w", err)
	}
	return fmt.Errorf("read the stream: %w", err)
}

// entryErr says which entry an error is about.
func entryErr(name string, err error) error {
	if k := refuse.KindOf(err); k != refuse.Failed {
		return &refuse.Error{Kind: k, What: fmt.Sprintf("%q: %v", name, err), Err: err}
	}
	return fmt.Errorf("%q: %w", name, err)
}

// opened is a folder on the way to the entry that is being written.
type opened struct {
	name string // relative to the target
	fd   int
	made *tar.Header // its attributes, set when it is left: filling a folder changes its time, and its default list would be inherited; nil: it was there
}

type unpacker struct {
	ctx   context.Context
	in    *Counter
	to    To
	all   Descriptors
	as    string
	base  int      // the folder that the tree goes into
	dirs  []opened // below it, each in the one before
	tally Tally
	temps int
	buf   []byte
}

// entry writes one entry.
func (u *unpacker) entry(h *tar.Header, r io.Reader) error {
	if err := u.ctx.Err(); err != nil {
		return err
	}
	name, err := u.name(h.Name)
	if err != nil {
		return err
	}
	if name == "." {
		if h.Typeflag != tar.TypeDir {
			return refuse.Invalidf("the target is a folder")
		}
		return nil // it is there, and stays as it is
	}
	if h.Typeflag == tar.TypeChar || h.Typeflag == tar.TypeBlock {
		u.tally.Devices++
		return nil
	}
	if name == u.as && (h.Typeflag == tar.TypeSymlink || h.Typeflag == tar.TypeLink) {
		return refuse.Invalidf("what was asked for is a file or a folder, and a link came")
	}
	dir, base, err := u.enter(name)
	if err != nil {
		return err
	}
	u.tally.Entries++
	switch h.Typeflag {
	case tar.TypeDir:
		return u.open(dir, base, name, h)
	case tar.TypeReg, tar.TypeGNUSparse:
		return u.file(dir, base, h, r)
	case tar.TypeSymlink, tar.TypeFifo:
		return u.special(dir, base, h)
	case tar.TypeLink:
		return u.link(dir, base, h)
	}
	return refuse.Invalidf("entries of type %q are refused", h.Typeflag)
}

// name returns the name of an entry below the target.
func (u *unpacker) name(given string) (string, error) {
	name, err := clean(given)
	if err != nil || u.as == "" {
		return name, err
	}
	rest, ok := strings.CutPrefix(name, u.to.Top)
	if !ok || rest != "" && rest[0] != '/' {
		return "", refuse.Invalidf("it is not in %s, which was asked for", u.to.Top)
	}
	return u.as + rest, nil
}

// split parts a name into the folder ("" for the target itself) and the last part.
func split(name string) (dir, base string) {
	if i := strings.LastIndexByte(name, '/'); i >= 0 {
		return name[:i], name[i+1:]
	}
	return "", name
}

// enter opens the folder that an entry lies in, and makes it if it is missing. It leaves the folders that lie elsewhere.
func (u *unpacker) enter(name string) (dir int, base string, err error) {
	parent, base := split(name)
	keep := len(u.dirs)
	for keep > 0 && !within(parent, u.dirs[keep-1].name) {
		keep--
	}
	if err := u.finish(keep); err != nil {
		return -1, "", err
	}
	for {
		dir, at := u.base, ""
		if n := len(u.dirs); n > 0 {
			dir, at = u.dirs[n-1].fd, u.dirs[n-1].name
		}
		if at == parent {
			return dir, base, nil
		}
		next, _, _ := strings.Cut(strings.TrimPrefix(parent[len(at):], "/"), "/")
		below := next
		if at != "" {
			below = at + "/" + next
		}
		if err := u.open(dir, next, below, nil); err != nil {
			return -1, "", err
		}
	}
}

// within reports whether a name is a folder or below it.
func within(name, dir string) bool {
	return name == dir || strings.HasPrefix(name, dir) && name[len(dir)] == '/'
}

// open opens a folder, and makes it if it is missing: with these attributes, or else as a folder that the stream does not list.
func (u *unpacker) open(dir int, base, name string, h *tar.Header) error {
	var made *tar.Header
	err := unix.Mkdirat(dir, base, 0o700)
	switch {
	case errors.Is(err, unix.EEXIST):
	case err != nil:
		return fmt.Errorf("make the folder: %w", err)
	case h == nil:
		made = &tar.Header{Name: name, Typeflag: tar.TypeDir, Mode: 0o755, Uid: u.to.UID, Gid: u.to.GID}
	default:
		made = u.keep(h)
	}
	fd, err := OpenFolder(dir, base)
	if errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ELOOP) {
		return refuse.Busyf("%q is there already and is no folder", name)
	}
	if err != nil {
		return fmt.Errorf("open the folder %q: %w", name, err)
	}
	u.dirs = append(u.dirs, opened{name: strings.Clone(name), fd: fd, made: made})
	return nil
}

// mostKept is the most bytes of records that are kept of a folder's header until the folder is left. Folders can be 2,000 deep.
const mostKept = 64 << 10

// keep returns what of a folder's header is needed once the folder is left. All texts of archive/tar's headers share the memory of all of an
// entry's records, up to 1 MiB. Attributes for which there is no room are counted as left out; a list becomes one that cannot be read, so
// that the mode gives nobody more than the list did.
func (u *unpacker) keep(h *tar.Header) *tar.Header {
	own := &tar.Header{Typeflag: h.Typeflag, Mode: h.Mode, Uid: h.Uid, Gid: h.Gid, ModTime: h.ModTime, PAXRecords: map[string]string{}}
	left := mostKept
	take := func(record string) bool {
		const beside = 64 // bytes of a map's entry
		value := h.PAXRecords[record]
		n := len(record) + len(value) + beside
		if n > left {
			return false
		}
		left -= n
		own.PAXRecords[strings.Clone(record)] = strings.Clone(value)
		return true
	}
	lists := []string{accessRecord, defaultRecord, xattrRecord + AccessList, xattrRecord + DefaultList}
	for _, record := range lists {
		if h.PAXRecords[record] != "" && !take(record) {
			own.PAXRecords[record] = "too long"
		}
	}
	for _, record := range slices.Sorted(maps.Keys(h.PAXRecords)) {
		if strings.HasPrefix(record, xattrRecord) && !slices.Contains(lists, record) && !take(record) {
			u.tally.Attrs++
		}
	}
	return own
}

// OpenFolder opens a folder by a name of one part, and follows no link.
func OpenFolder(dir int, base string) (int, error) {
	return unix.Openat2(dir, base, &unix.OpenHow{
		Flags:   unix.O_RDONLY | unix.O_DIRECTORY | unix.O_NOFOLLOW | unix.O_CLOEXEC,
		Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS,
	})
}

// finish leaves all folders but the first keep ones, and gives those that it made their attributes.
func (u *unpacker) finish(keep int) error {
	for len(u.dirs) > keep {
		d := u.dirs[len(u.dirs)-1]
		u.dirs = u.dirs[:len(u.dirs)-1]
		var err error
		if d.made != nil {
			err = u.setAttrs(d.fd, d.made)
		}
		unix.Close(d.fd)
		if err != nil {
			return entryErr(d.name, err)
		}
	}
	return nil
}

// close closes all folders.
func (u *unpacker) close() {
	for _, d := range u.dirs {
		unix.Close(d.fd)
	}
	if u.dirs != nil {
		unix.Close(u.base)
	}
}
