// Package treetest makes random folder trees, and reads all of a tree that a copy should keep, for tests.
package treetest

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	"pgregory.net/rapid"
)

// Kind says what a random tree may hold, because not every copier keeps all of it.
type Kind struct {
	Owners bool // owners other than root, to 65535
	SetID  bool // set-user-id bits
	Attrs  bool // extended attributes of users
	ACLs   bool // access control lists
	FIFOs  bool
	// Easy leaves out what podman 4.3 loses or fails on: attributes without a value or with "=" in the name, times before 1970,
	// parts of a second, and hard links (it copies a folder to a new name, and looks for their targets below the old one).
	Easy bool
	Odd  bool // names that are not UTF-8, or hold a newline or a backslash
}

// All is a tree with everything.
func All() Kind {
	return Kind{Owners: true, SetID: true, Attrs: true, ACLs: true, FIFOs: true, Odd: true}
}

// Make makes a random tree in dir, which does not exist.
func Make(t *rapid.T, dir string, k Kind) {
	m := &maker{t: t, k: k}
	m.folder(dir, 0)
	m.times(dir)
}

type maker struct {
	t     *rapid.T
	k     Kind
	files []string
}

func (m *maker) must(err error) {
	if err != nil {
		m.t.Fatalf("make a tree: %v", err)
	}
}

func (m *maker) folder(dir string, depth int) {
	m.must(os.Mkdir(dir, 0o700))
	names := map[string]bool{}
	for range rapid.IntRange(0, 6).Draw(m.t, "entries") {
		name := m.name()
		if names[name] {
			continue
		}
		names[name] = true
		m.entry(filepath.Join(dir, name), depth)
	}
	m.dress(dir, true)
}

func (m *maker) name() string {
	if m.k.Odd && rapid.IntRange(0, 3).Draw(m.t, "odd") == 0 {
		name := rapid.SliceOfN(rapid.Byte(), 1, 40).Draw(m.t, "bytes")
		return "o" + strings.Map(func(r rune) rune { return r }, string(bytes.Map(func(r rune) rune {
			if r == '/' || r == 0 {
				return '_'
			}
			return r
		}, name)))
	}
	if rapid.IntRange(0, 9).Draw(m.t, "long") == 0 {
		return strings.Repeat("n", rapid.IntRange(90, 250).Draw(m.t, "length"))
	}
	return rapid.StringMatching(`[a-zA-Zäß0-9._-]{1,3}x`).Draw(m.t, "name")
}

func (m *maker) entry(path string, depth int) {
	regular := false
	kinds := []string{"file", "file", "sparse", "symlink", "link", "folder", "folder"}
	if m.k.FIFOs {
		kinds = append(kinds, "fifo")
	}
	switch rapid.SampledFrom(kinds).Draw(m.t, "kind") {
	case "file":
		regular = true
		m.must(os.WriteFile(path, rapid.SliceOfN(rapid.Byte(), 0, 2000).Draw(m.t, "data"), 0o600))
	case "sparse":
		regular = true
		m.sparse(path)
	case "symlink":
		target := rapid.SampledFrom([]string{"a", "/etc/passwd", "../..", "gone\n", strings.Repeat("t", 200)}).Draw(m.t, "target")
		m.must(os.Symlink(target, path))
	case "link":
		if len(m.files) == 0 || m.k.Easy {
			return
		}
		m.must(os.Link(rapid.SampledFrom(m.files).Draw(m.t, "of"), path))
		return
	case "fifo":
		m.must(unix.Mkfifo(path, 0o600))
	case "folder":
		if depth < 4 {
			m.folder(path, depth+1)
		}
		return
	}
	if regular { // GNU tar keeps no other links
		m.files = append(m.files, path)
	}
	m.dress(path, false)
}

func (m *maker) sparse(path string) {
	f, err := os.Create(path)
	m.must(err)
	defer f.Close()
	size := rapid.Int64Range(0, 1<<22).Draw(m.t, "size")
	m.must(f.Truncate(size))
	for range rapid.IntRange(0, 4).Draw(m.t, "extents") {
		at := rapid.Int64Range(0, max(size-1, 0)).Draw(m.t, "at")
		_, err := f.WriteAt([]byte("some data"), at)
		m.must(err)
	}
}

// dress gives a file its owner, mode and attributes.
func (m *maker) dress(path string, dir bool) {
	info, err := os.Lstat(path)
	m.must(err)
	if m.k.Owners {
		uid := rapid.SampledFrom([]int{0, 1, 1000, 65535}).Draw(m.t, "uid")
		m.must(os.Lchown(path, uid, rapid.SampledFrom([]int{0, 5, 65535}).Draw(m.t, "gid")))
	}
	if info.Mode()&fs.ModeSymlink != 0 {
		return
	}
	mode := rapid.Uint32Range(0, 0o777).Draw(m.t, "mode")
	if m.k.SetID {
		mode |= rapid.SampledFrom([]uint32{0, 0, unix.S_ISUID, unix.S_ISGID}).Draw(m.t, "setid")
	}
	if dir {
		mode = mode&0o777 | rapid.SampledFrom([]uint32{0, unix.S_ISVTX}).Draw(m.t, "sticky")
	}
	m.must(unix.Chmod(path, mode))
	if info.Mode()&fs.ModeNamedPipe != 0 {
		return
	}
	if m.k.Attrs && rapid.Bool().Draw(m.t, "attr") {
		names, least := []string{"user.a", "user.b=%c"}, 0
		if m.k.Easy {
			names, least = names[:1], 1
		}
		m.must(unix.Setxattr(path, rapid.SampledFrom(names).Draw(m.t, "attr name"), rapid.SliceOfN(rapid.Byte(), least, 30).Draw(m.t, "value"), 0))
	}
	if m.k.ACLs && rapid.IntRange(0, 2).Draw(m.t, "acl") == 0 {
		m.must(unix.Setxattr(path, "system.posix_acl_access", acl(mode), 0))
		if dir {
			m.must(unix.Setxattr(path, "system.posix_acl_default", acl(mode), 0))
		}
	}
}

// acl is a list with a user and a group of its own, that agrees with a mode.
func acl(mode uint32) []byte {
	v := binary.LittleEndian.AppendUint32(nil, 2)
	for _, e := range []struct {
		tag, perm uint16
		id        uint32
	}{
		{1, uint16(mode >> 6 & 7), ^uint32(0)},
		{2, 5, 1000},
		{4, 4, ^uint32(0)},
		{8, 6, 7},
		{16, uint16(mode >> 3 & 7), ^uint32(0)},
		{32, uint16(mode & 7), ^uint32(0)},
	} {
		v = binary.LittleEndian.AppendUint16(v, e.tag)
		v = binary.LittleEndian.AppendUint16(v, e.perm)
		v = binary.LittleEndian.AppendUint32(v, e.id)
	}
	return v
}

// times gives all of a tree times, from the inside to the outside.
func (m *maker) times(dir string) {
	var all []string
	m.must(filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
		all = append(all, path)
		return err
	}))
	slices.Reverse(all)
	first, parts := int64(-1e9), int64(999_999_999)
	if m.k.Easy {
		first, parts = 0, 0
	}
	for _, path := range all {
		ts := unix.Timespec{Sec: rapid.Int64Range(first, 4e9).Draw(m.t, "sec"), Nsec: rapid.Int64Range(0, parts).Draw(m.t, "nsec")}
		m.must(unix.UtimesNanoAt(unix.AT_FDCWD, path, []unix.Timespec{ts, ts}, unix.AT_SYMLINK_NOFOLLOW))
	}
}

// Keep says which properties Read reads.
type Keep struct {
	Owners, SetID, Attrs, ACLs, Holes, Nanoseconds, TopTime bool
	Narrow                                                  bool // read the mode that a file with an access control list may have without the list
}

// Whole reads everything.
func Whole() Keep {
	return Keep{Owners: true, SetID: true, Attrs: true, ACLs: true, Holes: true, Nanoseconds: true, TopTime: true}
}

// Read describes a tree: a line for each name.
func Read(t testing.TB, dir string, k Keep) []string {
	t.Helper()
	var all []string
	inodes := map[uint64]string{}
	err := filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name, _ := filepath.Rel(dir, path)
		line, err := describe(path, name, k, inodes)
		all = append(all, line)
		return err
	})
	if err != nil {
		t.Fatalf("read the tree: %v", err)
	}
	return all
}

func describe(path, name string, k Keep, inodes map[uint64]string) (string, error) {
	var st unix.Stat_t
	if err := unix.Lstat(path, &st); err != nil {
		return "", err
	}
	kind := st.Mode & unix.S_IFMT
	if first, known := inodes[st.Ino]; known && kind != unix.S_IFDIR {
		return fmt.Sprintf("%q is %q", name, first), nil
	}
	inodes[st.Ino] = name
	mode := st.Mode & 0o7777
	if !k.SetID && kind != unix.S_IFDIR {
		mode &^= unix.S_ISUID | unix.S_ISGID
	}
	if k.Narrow && kind != unix.S_IFLNK {
		mode = narrow(path, mode)
	}
	line := fmt.Sprintf("%q %o %o", name, kind, mode)
	if k.Owners {
		line += fmt.Sprintf(" %d:%d", st.Uid, st.Gid)
	}
	if name != "." || k.TopTime {
		line += fmt.Sprintf(" %d", st.Mtim.Sec)
		if k.Nanoseconds {
			line += fmt.Sprintf(".%09d", st.Mtim.Nsec)
		}
	}
	switch kind {
	case unix.S_IFLNK:
		target, err := os.Readlink(path)
		return line + fmt.Sprintf(" → %q", target), err
	case unix.S_IFREG:
		data, err := os.ReadFile(path)
		if err != nil {
			return "", err
		}
		line += fmt.Sprintf(" %d %x", len(data), sha256.Sum256(data))
		if k.Holes {
			holes, err := holes(path)
			if err != nil {
				return "", err
			}
			line += " " + holes
		}
	case unix.S_IFDIR:
	default:
		return line, nil
	}
	return line + attrs(path, k), nil
}

// narrow returns the mode of a file with a list of acl that lets no user open the file whom the list keeps out.
func narrow(path string, mode uint32) uint32 {
	v := make([]byte, 1<<12)
	n, err := unix.Lgetxattr(path, "system.posix_acl_access", v)
	if err != nil {
		return mode
	}
	perm := map[uint16]uint32{}
	for v = v[4:n]; len(v) > 0; v = v[8:] { // one entry of each kind, as acl makes them
		perm[binary.LittleEndian.Uint16(v)] = uint32(binary.LittleEndian.Uint16(v[2:]))
	}
	group := perm[4] & perm[16] & perm[2]
	other := perm[32] & perm[16] & perm[2] & perm[8]
	return mode&^0o077 | group<<3 | other
}

// holes lists where a file has data.
func holes(path string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	var parts []string
	for at := int64(0); ; {
		data, err := f.Seek(at, unix.SEEK_DATA)
		if err != nil {
			return strings.Join(parts, ","), nil // ENXIO: no more
		}
		if at, err = f.Seek(data, unix.SEEK_HOLE); err != nil {
			return "", err
		}
		parts = append(parts, fmt.Sprintf("%d-%d", data, at))
	}
}

func attrs(path string, k Keep) string {
	buf := make([]byte, 1<<12)
	n, err := unix.Listxattr(path, buf)
	if err != nil || n == 0 {
		return ""
	}
	var all []string
	for name := range strings.SplitSeq(strings.TrimSuffix(string(buf[:n]), "\x00"), "\x00") {
		if !(k.Attrs && strings.HasPrefix(name, "user.") || k.ACLs && strings.HasPrefix(name, "system.posix_acl")) {
			continue
		}
		value := make([]byte, 1<<12)
		v, err := unix.Getxattr(path, name, value)
		if err == nil {
			all = append(all, fmt.Sprintf(" %s=%x", name, value[:v]))
		}
	}
	slices.Sort(all)
	return strings.Join(all, "")
}
