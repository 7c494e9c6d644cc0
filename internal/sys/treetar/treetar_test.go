package treetar

import (
	"archive/tar"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
	"pgregory.net/rapid"

	"berth/internal/sys/thread"
	"berth/internal/sys/treetar/treetest"
	"berth/test/testkit"
)

// descriptors are those of this process.
func descriptors(t testing.TB) Descriptors {
	t.Helper()
	d, err := OpenDescriptors()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(d.Close)
	return d
}

func pack(t testing.TB, dir string, from From) ([]byte, Tally) {
	t.Helper()
	fd, err := unix.Open(dir, unix.O_PATH, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	from.Files = descriptors(t)
	var b bytes.Buffer
	tally, err := Pack(t.Context(), &b, fd, from)
	if err != nil {
		t.Fatal(err)
	}
	return b.Bytes(), tally
}

// into unpacks a stream into a folder.
func into(t testing.TB, dir string, stream []byte, to To) (Tally, error) {
	t.Helper()
	return intoFrom(t, dir, bytes.NewReader(stream), to)
}

func intoFrom(t testing.TB, dir string, stream io.Reader, to To) (Tally, error) {
	t.Helper()
	to.Files = descriptors(t)
	as := to.Top
	to.Place = func(*tar.Header) (int, string, error) {
		fd, err := unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		return fd, as, err
	}
	return Unpack(t.Context(), stream, to)
}

// TestRoundTrip packs random trees and unpacks them, here and with GNU tar, and unpacks what GNU tar packs.
func TestRoundTrip(t *testing.T) {
	testkit.NeedsRoot(t)
	work := t.TempDir()
	var n atomic.Int64
	rapid.Check(t, func(rt *rapid.T) {
		dir := filepath.Join(work, strconv.FormatInt(n.Add(1), 10))
		if err := os.Mkdir(dir, 0o755); err != nil {
			rt.Fatal(err)
		}
		defer os.RemoveAll(dir)
		treetest.Make(rt, filepath.Join(dir, "tree"), treetest.All())
		want := treetest.Read(t, filepath.Join(dir, "tree"), treetest.Whole())
		stream, tally := pack(t, filepath.Join(dir, "tree"), From{Top: "tree"})
		if len(tally.Notes()) > 0 {
			rt.Fatalf("left out: %v", tally.Notes())
		}
		for _, way := range []string{"ours", "to tar", "from tar"} {
			to := filepath.Join(dir, way)
			if err := os.Mkdir(to, 0o755); err != nil {
				rt.Fatal(err)
			}
			switch way {
			case "to tar":
				gnuTar(rt, stream, "-C", to, "-x", "-p", "--xattrs", "--acls", "--numeric-owner")
			case "from tar":
				stream = gnuTar(rt, nil, "-C", dir, "-c", "--format=posix", "--sparse", "--xattrs", "--xattrs-include=*", "--acls", "--numeric-owner", "tree")
				fallthrough
			default:
				if _, err := into(t, to, stream, To{Top: "tree", Owners: true}); err != nil {
					rt.Fatalf("%s: %v", way, err)
				}
			}
			keep := treetest.Whole()
			if way == "from tar" {
				keep.Holes = false // GNU tar writes zeros where a hole is small
				want = treetest.Read(t, filepath.Join(dir, "tree"), keep)
			}
			if d := cmp.Diff(want, treetest.Read(t, filepath.Join(to, "tree"), keep)); d != "" {
				rt.Fatalf("%s (-want +got):\n%s", way, d)
			}
		}
	})
}

// TestOwnersAreCounted: what no image can have is said where an image is to be made of it.
func TestOwnersAreCounted(t *testing.T) {
	testkit.NeedsRoot(t)
	dir := t.TempDir()
	for name, owner := range map[string][2]int{"a": {65535, 65535}, "b": {65536, 0}, "c": {0, 100000}} {
		path := filepath.Join(dir, name)
		if err := errors.Join(os.WriteFile(path, nil, 0o600), os.Chown(path, owner[0], owner[1])); err != nil {
			t.Fatal(err)
		}
	}
	for owners, want := range map[bool][]string{false: nil, true: {"2 files of owners above 65535: berth image import refuses them"}} {
		if _, tally := pack(t, dir, From{Owners: owners}); !slices.Equal(tally.Notes(), want) {
			t.Errorf("Owners %t: %q, want %q", owners, tally.Notes(), want)
		}
	}
}

// TestListOfTheFolder: what has no list in the stream gets none from the folder into which it is copied, where lists are kept.
func TestListOfTheFolder(t *testing.T) {
	testkit.NeedsRoot(t)
	var stream bytes.Buffer
	w := tar.NewWriter(&stream)
	for _, h := range []*tar.Header{
		{Name: "d/", Typeflag: tar.TypeDir, Mode: 0o770},
		{Name: "d/f", Typeflag: tar.TypeReg, Mode: 0o660},
		{Name: "f", Typeflag: tar.TypeReg, Mode: 0o660},
		{Name: "p", Typeflag: tar.TypeFifo, Mode: 0o660},
	} {
		if err := w.WriteHeader(h); err != nil {
			t.Fatal(err)
		}
	}
	w.Close()
	list, _ := readACL("user::rwx,user:7:rwx,group::r-x,mask::rwx,other::---").Value()
	for _, keep := range []bool{true, false} {
		dir := t.TempDir()
		if err := unix.Setxattr(dir, DefaultList, list, 0); err != nil {
			t.Fatal(err)
		}
		if _, err := into(t, dir, stream.Bytes(), To{Owners: keep}); err != nil {
			t.Fatal(err)
		}
		for _, name := range []string{"d", "d/f", "f", "p"} {
			for _, attr := range []string{AccessList, DefaultList} {
				_, err := unix.Getxattr(filepath.Join(dir, name), attr, make([]byte, 100))
				if has := err == nil; has != (!keep && (attr == AccessList || name == "d")) {
					t.Errorf("keep %v: %s has %s: %v", keep, name, attr, has)
				}
			}
		}
	}
}

// TestFIFONotNamed: of a FIFO that cannot get its name nothing is left.
func TestFIFONotNamed(t *testing.T) {
	testkit.NeedsRoot(t)
	dir := t.TempDir()
	list, _ := readACL("user::rwx,user:7:rwx,group::r-x,mask::rwx,other::---").Value()
	if err := errors.Join(unix.Setxattr(dir, DefaultList, list, 0), os.Mkdir(filepath.Join(dir, "p"), 0o700)); err != nil {
		t.Fatal(err)
	}
	at, err := os.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer at.Close()
	u := &unpacker{to: To{Owners: true}, all: descriptors(t)}
	if err := u.makeFIFO(int(at.Fd()), "p"); err == nil {
		t.Error("a folder was replaced by a FIFO")
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) != 1 {
		t.Errorf("left: %v, %v", left, err)
	}
}

// TestNarrowWithoutLists: of a list that is not asked for, or cannot be set, nothing is left that the file's users gain by.
func TestNarrowWithoutLists(t *testing.T) {
	testkit.NeedsRoot(t)
	for name, c := range map[string]struct {
		list string
		to   To
		mode uint32
	}{
		"kept":      {"user::rw-,user:7:rw-,group::r--,mask::rw-,other::r--", To{Owners: true}, 0o664},
		"not asked": {"user::rw-,user:7:rw-,group::r--,mask::rw-,other::r--", To{}, 0o644},
		"names":     {"user::rw-,user:ann:rw-,group::r--,mask::rw-,other::r--", To{Owners: true}, 0o644},
		"no mask":   {"user::rw-,user:7:rw-,group::r--,other::r--", To{Owners: true}, 0o644}, // which the kernel refuses
		"damaged":   {"x", To{Owners: true}, 0o600},
	} {
		var stream bytes.Buffer
		w := tar.NewWriter(&stream)
		for _, kind := range []byte{tar.TypeReg, tar.TypeDir, tar.TypeFifo} {
			h := &tar.Header{Name: string([]byte{'n', kind}), Typeflag: kind, Mode: 0o664, PAXRecords: map[string]string{"SCHILY.acl.access": c.list}}
			if err := w.WriteHeader(h); err != nil {
				t.Fatal(err)
			}
		}
		w.Close()
		dir := t.TempDir()
		if _, err := into(t, dir, stream.Bytes(), c.to); err != nil {
			t.Fatal(err)
		}
		for _, kind := range []byte{tar.TypeReg, tar.TypeDir, tar.TypeFifo} {
			var st unix.Stat_t
			if err := unix.Lstat(filepath.Join(dir, string([]byte{'n', kind})), &st); err != nil {
				t.Fatal(err)
			}
			want := c.mode
			if kind == tar.TypeFifo { // it gets no list
				want = min(want, 0o644)
			}
			if st.Mode&0o7777 != want {
				t.Errorf("%s, type %c: mode %o, want %o", name, kind, st.Mode&0o7777, want)
			}
		}
	}
}

func gnuTar(t *rapid.T, stdin []byte, args ...string) []byte {
	cmd := exec.Command("tar", args...)
	cmd.Stdin = bytes.NewReader(stdin)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("tar %v: %v: %s", args, err, &stderr)
	}
	return out
}

// TestHoleBesideAttributes packs a file that is one hole, and whose attributes have a block of their own (ext4 counts it in st_blocks), and one
// without holes, which is looked through for holes all the same.
func TestHoleBesideAttributes(t *testing.T) {
	testkit.NeedsRoot(t)
	dir := t.TempDir()
	tree := filepath.Join(dir, "tree")
	file := filepath.Join(tree, "file")
	for _, err := range []error{
		os.Mkdir(tree, 0o755), os.WriteFile(file, nil, 0o600), os.Truncate(file, 1671),
		unix.Setxattr(file, "user.a", bytes.Repeat([]byte("a"), 500), 0),
		os.WriteFile(file+"2", bytes.Repeat([]byte("data"), 250), 0o600), unix.Setxattr(file+"2", "user.a", []byte("a"), 0), os.Mkdir(filepath.Join(dir, "to"), 0o755),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	want := treetest.Read(t, tree, treetest.Whole())
	stream, _ := pack(t, tree, From{Top: "tree"})
	if _, err := into(t, filepath.Join(dir, "to"), stream, To{Top: "tree", Owners: true}); err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(want, treetest.Read(t, filepath.Join(dir, "to/tree"), treetest.Whole())); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
}

// TestShrinks: of a file that becomes shorter while it is packed the rest is zeros, and it is counted.
func TestShrinks(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "f")
	const size, left = 1 << 20, 300 << 10
	testkit.Must(t, os.WriteFile(path, bytes.Repeat([]byte("x"), size), 0o600))
	out, tally := pack(t, dir, From{Top: "tree", Progress: func(int64, int64) { testkit.Must(t, os.Truncate(path, left)) }})
	if tally.Changed != 1 {
		t.Errorf("%+v", tally)
	}
	r := tar.NewReader(bytes.NewReader(out))
	for {
		h, err := r.Next()
		testkit.Must(t, err)
		if h.Name != "tree/f" {
			continue
		}
		data, err := io.ReadAll(r)
		testkit.Must(t, err)
		if want := append(bytes.Repeat([]byte("x"), left), make([]byte, size-left)...); !bytes.Equal(data, want) {
			t.Errorf("%d bytes, of them %d x", len(data), bytes.Count(data, []byte("x")))
		}
		return
	}
}

// TestUnreadable: what has gone is counted apart from what cannot be read, of which the first is told; too many open files end the copy.
func TestUnreadable(t *testing.T) {
	p := &packer{}
	for name, err := range map[string]error{"gone": unix.ENOENT, "stale": unix.ESTALE, "bad": unix.EIO} {
		testkit.Must(t, p.unreadable(name, err))
	}
	if p.tally.Changed != 2 || p.tally.Unreadable != 1 || p.tally.First != `"bad": input/output error` {
		t.Errorf("%+v", p.tally)
	}
	if err := p.unreadable("deep", unix.EMFILE); !errors.Is(err, unix.EMFILE) {
		t.Errorf("without files to open: %v", err)
	}
}

// TestBare: of a mount below the top only its place is packed.
func TestBare(t *testing.T) {
	testkit.NeedsRoot(t)
	dir := t.TempDir()
	testkit.Must(t, os.MkdirAll(filepath.Join(dir, "at"), 0o700))
	testkit.Must(t, os.WriteFile(filepath.Join(dir, "file"), []byte("below"), 0o600))
	var out []byte
	testkit.Must(t, thread.Own(func() error { // a mount namespace of its own
		if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
			return err
		}
		if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
			return err
		}
		for _, at := range []string{"at", "file"} {
			if err := unix.Mount(map[string]string{"at": "/proc", "file": "/proc/version"}[at], filepath.Join(dir, at), "", unix.MS_BIND, ""); err != nil {
				return err
			}
		}
		out, _ = pack(t, dir, From{Top: "tree", Bare: true})
		return nil
	}))
	var got []string
	for r := tar.NewReader(bytes.NewReader(out)); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		testkit.Must(t, err)
		got = append(got, fmt.Sprintf("%s %o %d", h.Name, h.Mode, h.Size))
	}
	slices.Sort(got)
	if want := []string{"tree/ 700 0", "tree/at/ 755 0", "tree/file 644 0"}; !slices.Equal(got[1:], want[1:]) || len(got) != 3 {
		t.Errorf("packed: %q", got)
	}
}
