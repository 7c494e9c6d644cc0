package packed

import (
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"berth/internal/sys/refuse"
	"berth/internal/sys/treetar"
	"berth/test/testkit"
)

// kinds skips a test where this machine cannot do what it needs.
func kinds(t *testing.T) []Kind {
	t.Helper()
	testkit.NeedsRoot(t)
	for _, k := range []Kind{EROFS, SquashFS} {
		if _, err := k.program(); err != nil {
			t.Skip(err)
		}
	}
	return []Kind{EROFS, SquashFS}
}

// newStore returns an empty store, and fails the test if a loop device of it is left.
func newStore(t *testing.T) (s Store, dir string) {
	t.Helper()
	dir = t.TempDir()
	t.Cleanup(func() {
		if left := loops(t, dir); len(left) > 0 {
			t.Errorf("loop devices left: %v", left)
		}
	})
	return In(filepath.Join(dir, "store")), dir
}

// loops returns the loop devices whose files lie in dir.
func loops(t *testing.T, dir string) (all []string) {
	t.Helper()
	files, err := filepath.Glob("/sys/block/loop*/loop/backing_file")
	testkit.Must(t, err)
	for _, f := range files {
		if text, err := os.ReadFile(f); err == nil && strings.HasPrefix(string(text), dir+"/") {
			all = append(all, strings.TrimSpace(string(text)))
		}
	}
	return all
}

// layers makes two layers with all that a root can have: the top one first.
func layers(t *testing.T) []string {
	t.Helper()
	dir := t.TempDir()
	in := func(name string) string { return filepath.Join(dir, name) }
	for _, d := range []string{"low/etc", "low/bin", "low/old/deep", "top/etc", "top/old", "top/only"} {
		testkit.Must(t, os.MkdirAll(in(d), 0o755))
	}
	write := func(name, text string, mode fs.FileMode) {
		testkit.Must(t, os.WriteFile(in(name), []byte(text), 0o600), os.Chmod(in(name), mode))
	}
	write("low/etc/a", "low", 0o640)
	write("top/etc/a", "top", 0o600)
	write("low/etc/removed", "x", 0o644)
	write("low/bin/su", "#!", 0o755|fs.ModeSetuid)
	write("low/bin/ping", "#!", 0o755)
	write("low/old/hidden", "x", 0o644)
	write("top/old/new", strings.Repeat("new ", 5000), 0o644)
	testkit.Must(t, os.Link(in("low/bin/ping"), in("low/bin/ping6")), os.Symlink("../etc/a", in("low/bin/link")),
		os.Lchown(in("low/etc/a"), 7, 8), os.Lchown(in("top/etc/a"), 1000, 65534), os.Chmod(in("top/only"), 0o777|fs.ModeSticky),
		unix.Mkfifo(in("top/only/fifo"), 0o644))
	// The capability cap_net_raw=ep of version 2 (linux/capability.h), as Debian's ping has it.
	capability := []byte{1, 0, 0, 2, 0, 0x20, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}
	testkit.Must(t, unix.Setxattr(in("low/bin/ping"), "security.capability", capability, 0),
		unix.Setxattr(in("top/etc/a"), "user.note", []byte("kept"), 0),
		unix.Setxattr(in("top/old"), "trusted.overlay.opaque", []byte("y"), 0),
		unix.Mknod(in("top/etc/removed"), unix.S_IFCHR, 0),
		unix.Mknod(in("top/only/dangling"), unix.S_IFCHR, 0)) // hides nothing: overlay lists it all the same
	return []string{in("top"), in("low")}
}

// tree describes all files of a mounted image.
func tree(t *testing.T, f *File) []string {
	t.Helper()
	m, err := f.Mount(t.Context())
	testkit.Must(t, err)
	defer m.Close()
	top := "/proc/self/fd/" + strconv.Itoa(int(m.Fd()))
	var all []string
	testkit.Must(t, fs.WalkDir(os.DirFS(top), ".", func(path string, e fs.DirEntry, err error) error {
		if err != nil || path == "." {
			return err
		}
		info, err := e.Info()
		if err != nil {
			return err
		}
		st := info.Sys().(*syscall.Stat_t)
		line := fmt.Sprintf("%s %v %d:%d", path, info.Mode(), st.Uid, st.Gid)
		if info.Mode().IsRegular() {
			line += fmt.Sprintf(" links %d size %d", st.Nlink, st.Size)
		}
		for _, name := range []string{"security.capability", "user.note"} {
			value := make([]byte, 64)
			if n, err := unix.Lgetxattr(filepath.Join(top, path), name, value); err == nil {
				line += fmt.Sprintf(" %s=%q", name, value[:n])
			}
		}
		all = append(all, line)
		return nil
	}))
	return all
}

// TestPackKeepsTheRoot: the merged root has what the layers show, and nothing else.
func TestPackKeepsTheRoot(t *testing.T) {
	want := []string{
		"bin drwxr-xr-x 0:0",
		"bin/link Lrwxrwxrwx 0:0",
		`bin/ping -rwxr-xr-x 0:0 links 2 size 2 security.capability="\x01\x00\x00\x02\x00 \x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00"`,
		`bin/ping6 -rwxr-xr-x 0:0 links 2 size 2 security.capability="\x01\x00\x00\x02\x00 \x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00"`,
		"bin/su urwxr-xr-x 0:0 links 1 size 2",
		"etc drwxr-xr-x 0:0",
		`etc/a -rw------- 1000:65534 links 1 size 3 user.note="kept"`,
		"old drwxr-xr-x 0:0",
		"old/new -rw-r--r-- 0:0 links 1 size 20000",
		"only dtrwxrwxrwx 0:0",
		"only/fifo prw-r--r-- 0:0",
	}
	for _, kind := range kinds(t) {
		t.Run(string(kind), func(t *testing.T) {
			s, dir := newStore(t)
			path := filepath.Join(dir, "x."+string(kind))
			said := Trailer{Image: "x", Config: json.RawMessage(`{"cmd":["/bin/su"]}`)}
			r, err := s.Pack(t.Context(), layers(t), said, path)
			testkit.Must(t, err)
			f, got, err := s.Resolve(path)
			testkit.Must(t, err)
			if f.Digest != r.Digest || f.Path != path {
				t.Errorf("resolved to %+v, packed %+v", f, r)
			}
			if diff := cmp.Diff(said, got); diff != "" {
				t.Error(diff)
			}
			if diff := cmp.Diff(want, tree(t, f)); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// TestPackAgain: the same layers give the same bytes, whenever they are packed; another name or time gives another UUID. The second file
// is one more place of the same record, and one that gets no name leaves the first its record.
func TestPackAgain(t *testing.T) {
	for _, kind := range kinds(t) {
		t.Run(string(kind), func(t *testing.T) {
			s, dir := newStore(t)
			root := layers(t)
			first, err := s.Pack(t.Context(), root, Trailer{Image: "x"}, filepath.Join(dir, "a."+string(kind)))
			testkit.Must(t, err)
			soon := time.Now().Truncate(time.Second).Add(time.Second)
			time.Sleep(time.Until(soon)) // the programs' clock is in seconds
			second, err := s.Pack(t.Context(), root, Trailer{Image: "x"}, filepath.Join(dir, "b."+string(kind)))
			testkit.Must(t, err)
			if first.Digest != second.Digest || len(second.Places) != 2 {
				t.Errorf("packed as %s, then as %s at %v", first.Digest, second.Digest, second.Places)
			}
			unnamed := Place{Path: filepath.Join(dir, "c."+string(kind)), Packed: true, Begun: true}
			second.Places = nil // add knows the others
			_, err = s.add(t.Context(), second, unnamed)
			testkit.Must(t, err, s.forget(t.Context(), second.Digest, unnamed))
			all, err := s.List()
			testkit.Must(t, err)
			if len(all) != 1 || len(all[0].Places) != 2 {
				t.Errorf("after a file that got no name: %+v", all)
			}
			testkit.Must(t, os.Chtimes(filepath.Join(root[1], "bin/su"), time.Time{}, time.Unix(1, 0)))
			third, err := s.Pack(t.Context(), root, Trailer{Image: "x"}, filepath.Join(dir, "d."+string(kind)))
			testkit.Must(t, err)
			if third.Digest == first.Digest {
				t.Error("another time gives the same bytes")
			}
		})
	}
}

// TestPackLoses: what a file system does not keep is counted, and a file without its access control list is open to nobody who could
// not open it before.
func TestPackLoses(t *testing.T) {
	for _, kind := range kinds(t) {
		t.Run(string(kind), func(t *testing.T) {
			top := t.TempDir()
			testkit.Must(t, os.Chmod(top, 0o755))
			// user::rw-, user:1000:rw-, group::r--, mask::rw-, other::r--, as the kernel has it: posix_acl_xattr.h.
			entry := func(tag, perm byte, id ...byte) []byte {
				return append([]byte{tag, 0, perm, 0}, append(id, 255, 255, 255, 255)[:4]...)
			}
			list := slices.Concat([]byte{2, 0, 0, 0}, entry(1, 6), entry(2, 6, 0xe8, 3, 0, 0), entry(4, 4), entry(16, 6), entry(32, 4))
			names := []string{"plain", "listed", "with space \"'\\\t*#", "w\xe9", "dir", "u"}
			at := func(name string, sec, nsec int64) {
				testkit.Must(t, unix.UtimesNanoAt(unix.AT_FDCWD, filepath.Join(top, name), []unix.Timespec{{Sec: sec, Nsec: nsec}, {Sec: sec, Nsec: nsec}}, 0))
			}
			for _, name := range names {
				path := filepath.Join(top, name)
				if name == "dir" {
					testkit.Must(t, os.Mkdir(path, 0o755))
				} else {
					testkit.Must(t, os.WriteFile(path, nil, 0o600))
				}
				testkit.Must(t, os.Chown(path, 70000, 5), unix.Chmod(path, 0o664))
				if name != "plain" {
					testkit.Must(t, unix.Setxattr(path, treetar.AccessList, list, 0))
				}
				if name == "u" {
					testkit.Must(t, unix.Chmod(path, 0o4664))
				}
				at(name, 1e9, 0)
			}
			testkit.Must(t, unix.Setxattr(filepath.Join(top, "dir"), treetar.DefaultList, list, 0))
			at("plain", -5, 0)
			at("listed", 1<<32+7, 500)
			at("dir", 1e9, 7)
			at(".", 1e9, 0)
			s, dir := newStore(t)
			path := filepath.Join(dir, "x."+string(kind))
			r, err := s.Pack(t.Context(), []string{top}, Trailer{}, path)
			testkit.Must(t, err)
			want, mode := Lost{}, fs.FileMode(0o664)
			if kind == SquashFS {
				want, mode = Lost{ACLs: 5, Times: 2, Parts: 1}, 0o644
			}
			if r.Lost != want {
				t.Errorf("counted %+v, want %+v", r.Lost, want)
			}
			f, _, err := s.Resolve(path)
			testkit.Must(t, err)
			m, err := f.Mount(t.Context())
			testkit.Must(t, err)
			defer m.Close()
			in := func(name string) string { return filepath.Join("/proc/self/fd", strconv.Itoa(int(m.Fd())), name) }
			for _, name := range names {
				info, err := os.Stat(in(name))
				testkit.Must(t, err)
				st := info.Sys().(*syscall.Stat_t)
				want := mode
				if name == "plain" {
					want = 0o664
				}
				got := make([]byte, 100)
				n, _ := unix.Getxattr(in(name), treetar.AccessList, got)
				listed := n > 0 && string(got[:n]) == string(list)
				if info.Mode().Perm() != want || st.Uid != 70000 || st.Gid != 5 || (info.Mode()&fs.ModeSetuid != 0) != (name == "u") || listed != (kind == EROFS && name != "plain") {
					t.Errorf("%q: mode %v, want %v, owner %d:%d, list %q", name, info.Mode(), want, st.Uid, st.Gid, got[:max(n, 0)])
				}
			}
			if kind == EROFS {
				for name, want := range map[string]syscall.Timespec{"plain": {Sec: -5}, "listed": {Sec: 1<<32 + 7, Nsec: 500}, "dir": {Sec: 1e9, Nsec: 7}} {
					info, err := os.Stat(in(name))
					testkit.Must(t, err)
					if got := info.Sys().(*syscall.Stat_t).Mtim; got != want {
						t.Errorf("%s: time %v, want %v", name, got, want)
					}
				}
			}
		})
	}
}

// TestPackRefuses: what cannot be packed leaves no file and no record.
func TestPackRefuses(t *testing.T) {
	kinds(t)
	s, dir := newStore(t)
	there := filepath.Join(dir, "there.erofs")
	testkit.Must(t, os.WriteFile(there, nil, 0o600))
	small := filepath.Join(dir, "small")
	testkit.Must(t, os.Mkdir(small, 0o700), unix.Mount("berth-test", small, "tmpfs", 0, "size=64k"))
	t.Cleanup(func() { testkit.Must(t, unix.Unmount(small, 0)) })
	big := t.TempDir()
	random := make([]byte, 1<<20)
	scramble(random)
	testkit.Must(t, os.WriteFile(filepath.Join(big, "random"), random, 0o600))
	for name, c := range map[string]struct {
		path   string
		lowers []string
		kind   refuse.Kind
		says   string
	}{
		"another ending":     {filepath.Join(dir, "x.img"), []string{dir}, refuse.Invalid, "must end in .erofs or .squashfs"},
		"no folder":          {filepath.Join(dir, "no/x.erofs"), []string{dir}, refuse.NotFound, "there is no folder"},
		"it exists":          {there, []string{dir}, refuse.Busy, "exists already"},
		"a layer is gone":    {filepath.Join(dir, "x.erofs"), []string{filepath.Join(dir, "gone")}, refuse.Failed, "merge 1 layers"},
		"a full disk":        {filepath.Join(small, "x.erofs"), []string{big}, refuse.Cannot, "is full"},
		"a full disk, other": {filepath.Join(small, "x.squashfs"), []string{big}, refuse.Cannot, "is full"},
		"no such fs":         {"/proc/x.erofs", []string{dir}, refuse.Cannot, "local file system"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := s.Pack(t.Context(), c.lowers, Trailer{}, c.path)
			if refuse.KindOf(err) != c.kind || !strings.Contains(fmt.Sprint(err), c.says) {
				t.Errorf("got kind %d: %v; want %d about %q", refuse.KindOf(err), err, c.kind, c.says)
			}
			if all, err := s.List(); err != nil || len(all) > 0 {
				t.Errorf("recorded: %+v, %v", all, err)
			}
			if left, _ := filepath.Glob(small + "/*"); len(left) > 0 {
				t.Errorf("left: %v", left)
			}
		})
	}
	t.Setenv("PATH", dir)
	for _, k := range []Kind{EROFS, SquashFS} {
		_, err := s.Pack(t.Context(), []string{dir}, Trailer{}, filepath.Join(dir, "y."+string(k)))
		if refuse.KindOf(err) != refuse.Cannot || !strings.Contains(err.Error(), "; apt install ") {
			t.Errorf("without the program: %v", err)
		}
	}
}

// scramble fills data with bytes that do not compress.
func scramble(data []byte) {
	x := uint64(88172645463325252)
	for i := range data {
		x ^= x << 13
		x ^= x >> 7
		x ^= x << 17
		data[i] = byte(x)
	}
}

// TestShared: mounts of one file share the loop device and the superblock, and the last one takes the device with it.
func TestShared(t *testing.T) {
	for _, kind := range kinds(t) {
		t.Run(string(kind), func(t *testing.T) {
			s, dir := newStore(t)
			path := filepath.Join(dir, "x."+string(kind))
			_, err := s.Pack(t.Context(), layers(t), Trailer{}, path)
			testkit.Must(t, err)
			var mounts []*os.File
			devices := map[uint64]bool{}
			done := make(chan error)
			results := make(chan *os.File, 20)
			for range 20 {
				go func() {
					f, _, err := s.Resolve(path)
					if err == nil {
						var m *os.File
						if m, err = f.Mount(t.Context()); err == nil {
							results <- m
						}
					}
					done <- err
				}()
			}
			for range 20 {
				testkit.Must(t, <-done)
			}
			close(results)
			for m := range results {
				mounts = append(mounts, m)
				var st unix.Stat_t
				testkit.Must(t, unix.Fstat(int(m.Fd()), &st))
				devices[st.Dev] = true
			}
			if got := loops(t, dir); len(devices) != 1 || len(got) != 1 {
				t.Errorf("20 mounts have %d superblocks on %v", len(devices), got)
			}
			for i, m := range mounts {
				if i == len(mounts)-1 && len(loops(t, dir)) != 1 {
					t.Error("the device went before the last mount")
				}
				m.Close()
			}
			if left := loops(t, dir); len(left) > 0 {
				t.Errorf("left after the last mount: %v", left)
			}
		})
	}
}

// TestMountFlags: a mount is read-only, and has no set-user-id programs and devices.
func TestMountFlags(t *testing.T) {
	kinds(t)
	s, dir := newStore(t)
	path := filepath.Join(dir, "x.erofs")
	_, err := s.Pack(t.Context(), layers(t), Trailer{}, path)
	testkit.Must(t, err)
	f, _, err := s.Resolve(path)
	testkit.Must(t, err)
	m, err := f.Mount(t.Context())
	testkit.Must(t, err)
	defer m.Close()
	var st unix.Statfs_t
	testkit.Must(t, unix.Fstatfs(int(m.Fd()), &st))
	const want = unix.ST_RDONLY | unix.ST_NOSUID | unix.ST_NODEV
	if st.Flags&want != want {
		t.Errorf("flags %#x", st.Flags)
	}
}

// pack packs a small root and returns its path.
func pack(t *testing.T, s Store, path string) Record {
	t.Helper()
	r, err := s.Pack(t.Context(), layers(t), Trailer{Image: "x"}, path)
	testkit.Must(t, err)
	return r
}

// mkfs writes a file system as another host would.
func mkfs(t *testing.T, path string) {
	t.Helper()
	args := []string{"mkfs.erofs", "--quiet", path, layers(t)[1]}
	if KindOf(path) == SquashFS {
		args = []string{"mksquashfs", layers(t)[1], path, "-quiet", "-no-progress"}
	}
	if out, err := exec.Command(args[0], args[1:]...).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
}

// contains reports whether a list has a place.
func (r Record) contains(path string) bool {
	return slices.ContainsFunc(r.Places, func(p Place) bool { return p.Path == path })
}
