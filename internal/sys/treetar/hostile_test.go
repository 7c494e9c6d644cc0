package treetar

import (
	"archive/tar"
	"bytes"
	"context"
	"io"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"berth/internal/sys/refuse"
	"berth/internal/sys/thread"
	"berth/internal/sys/treetar/treetest"
	"berth/test/testkit"
)

// stream makes a tar stream.
func stream(t testing.TB, entries ...tar.Header) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, h := range entries {
		data := h.Xattrs["data"] //nolint:staticcheck // a place for the data in a table
		h.Xattrs = nil           //nolint:staticcheck // as above
		h.Size = int64(len(data))
		if h.Mode == 0 {
			h.Mode = 0o755
		}
		if err := w.WriteHeader(&h); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write([]byte(data)); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func file(name, data string) tar.Header {
	return tar.Header{Name: name, Typeflag: tar.TypeReg, Xattrs: map[string]string{"data": data}} //nolint:staticcheck // see stream
}

// TestStreamsThatLeave unpacks streams that try to leave the target, or to change what is there in a way that nobody asked for.
func TestStreamsThatLeave(t *testing.T) {
	for name, c := range map[string]struct {
		top     string
		entries []tar.Header
		kind    refuse.Kind
		want    string
	}{
		"climbs":             {entries: []tar.Header{file("../x", "")}, kind: refuse.Invalid, want: "names that climb"},
		"climbs in between":  {entries: []tar.Header{file("a/../../x", "")}, kind: refuse.Invalid, want: "names that climb"},
		"absolute":           {entries: []tar.Header{file("/x", "")}, kind: refuse.Invalid, want: "absolute"},
		"not asked for":      {top: "a", entries: []tar.Header{file("b", "")}, kind: refuse.Invalid, want: "not in a, which was asked for"},
		"begins as asked":    {top: "a", entries: []tar.Header{file("ab", "")}, kind: refuse.Invalid, want: "not in a, which was asked for"},
		"by an own link":     {entries: []tar.Header{{Name: "l", Typeflag: tar.TypeSymlink, Linkname: "../outside"}, file("l/x", "")}, kind: refuse.Busy, want: "no folder"},
		"by a link there":    {entries: []tar.Header{file("there/x", "")}, kind: refuse.Busy, want: "no folder"},
		"folder over a link": {entries: []tar.Header{{Name: "there", Typeflag: tar.TypeDir}}, kind: refuse.Busy, want: "no folder"},
		"hard link outside":  {entries: []tar.Header{{Name: "h", Typeflag: tar.TypeLink, Linkname: "../outside/secret"}}, kind: refuse.Invalid, want: "names that climb"},
		"hard link by a link": {
			entries: []tar.Header{{Name: "h", Typeflag: tar.TypeLink, Linkname: "there/secret"}}, kind: refuse.Failed, want: "hard link to",
		},
		"hard link to a folder": {entries: []tar.Header{{Name: "h", Typeflag: tar.TypeLink, Linkname: "full"}}, kind: refuse.Invalid, want: "no file"},
		"file over a folder":    {entries: []tar.Header{file("full", "x")}, kind: refuse.Busy, want: "a folder of this name"},
		"folder over a file":    {entries: []tar.Header{file("full/x/y", "")}, kind: refuse.Busy, want: "no folder"},
		"the target as a file":  {entries: []tar.Header{file("./.", "x")}, kind: refuse.Invalid, want: "the target is a folder"},
		"a link as the top":     {top: "a", entries: []tar.Header{{Name: "a", Typeflag: tar.TypeSymlink, Linkname: "../outside"}}, kind: refuse.Invalid, want: "a link came"},
		"a link over the top":   {top: "a", entries: []tar.Header{file("a", "x"), {Name: "a", Typeflag: tar.TypeSymlink, Linkname: "../outside"}}, kind: refuse.Invalid, want: "a link came"},
		"too deep":              {entries: []tar.Header{file(strings.Repeat("d/", 5000)+"x", "")}, kind: refuse.Invalid, want: "deep"},
		"long name":             {entries: []tar.Header{file(strings.Repeat("n", 256), "")}, kind: refuse.Invalid, want: "longer than 255"},
	} {
		t.Run(name, func(t *testing.T) {
			work := t.TempDir()
			for _, dir := range []string{"outside", "in", "in/full"} {
				if err := os.Mkdir(filepath.Join(work, dir), 0o755); err != nil {
					t.Fatal(err)
				}
			}
			for _, f := range []string{"outside/secret", "in/full/x"} {
				if err := os.WriteFile(filepath.Join(work, f), []byte("old"), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			if err := os.Symlink("../outside", filepath.Join(work, "in/there")); err != nil {
				t.Fatal(err)
			}
			before := treetest.Read(t, filepath.Join(work, "outside"), treetest.Whole())
			_, err := into(t, filepath.Join(work, "in"), stream(t, c.entries...), To{Top: c.top, UID: os.Getuid(), GID: os.Getgid()})
			if err == nil || refuse.KindOf(err) != c.kind || !strings.Contains(err.Error(), c.want) {
				t.Errorf("error %v (kind %d), want %q (kind %d)", err, refuse.KindOf(err), c.want, c.kind)
			}
			if after := treetest.Read(t, filepath.Join(work, "outside"), treetest.Whole()); strings.Join(before, "\n") != strings.Join(after, "\n") {
				t.Errorf("outside was changed:\n%s\nbefore:\n%s", strings.Join(after, "\n"), strings.Join(before, "\n"))
			}
			if _, err := os.Readlink(filepath.Join(work, "in/a")); err == nil {
				t.Error("the top is a link")
			}
			if left, _ := filepath.Glob(filepath.Join(work, "in", ".berth-*")); len(left) > 0 {
				t.Errorf("left behind: %v", left)
			}
		})
	}
}

// TestKept: of a folder that is being filled nothing is kept of a header's records but the folder's attributes, and of these not many.
func TestKept(t *testing.T) {
	testkit.NeedsRoot(t)
	heap := func() int64 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return int64(m.HeapAlloc)
	}
	const depth = 30
	before, most, looked := heap(), int64(0), 0
	r, w := io.Pipe()
	go func() {
		to := tar.NewWriter(w)
		name := ""
		for i := range depth {
			name += "é" + strconv.Itoa(i) + "/"
			records := map[string]string{"comment": strings.Repeat("c", 800_000), "SCHILY.xattr.user.a": "v"}
			if i == 1 {
				records["SCHILY.xattr.user.b"] = strings.Repeat("b", 100_000)
			}
			if i == 2 { // the mode alone would let the group write
				records["SCHILY.acl.access"] = "user::rwx,user:1:rwx,group::---,mask::rwx,other::---" + strings.Repeat(",user:2:---", 10_000)
			}
			_ = to.WriteHeader(&tar.Header{Name: name, Typeflag: tar.TypeDir, Mode: 0o775, PAXRecords: records}) // the reader says it
		}
		_ = to.WriteHeader(&tar.Header{Name: name + "f", Typeflag: tar.TypeReg, Mode: 0o644, Size: 1})
		_, _ = to.Write([]byte("x"))
		w.CloseWithError(to.Close())
	}()
	dir := t.TempDir()
	tally, err := intoFrom(t, dir, r, To{Owners: true, Progress: func(int64, int64) {
		looked++
		most = max(most, heap()-before)
	}})
	if err != nil || tally.Attrs != 2 || tally.Entries != depth+1 {
		t.Errorf("%+v, %v", tally, err)
	}
	if looked == 0 || most > 6<<20 {
		t.Errorf("%d folders in each other take %d bytes (looked at %d times)", depth, most, looked)
	}
	if info, err := os.Lstat(filepath.Join(dir, "é0", "é1", "é2")); err != nil || info.Mode().Perm()&0o077 != 0 {
		t.Errorf("a folder whose list is too long: %v, %v", info, err)
	}
	value := make([]byte, 10)
	if n, err := unix.Lgetxattr(filepath.Join(dir, "é0", "é1"), "user.a", value); err != nil || string(value[:n]) != "v" {
		t.Errorf("user.a is %q, %v", value[:max(n, 0)], err)
	}
}

// TestLeftOut checks what an unpacked stream loses.
func TestLeftOut(t *testing.T) {
	testkit.NeedsRoot(t)
	set := file("setid", "x")
	set.Mode, set.PAXRecords = 0o6755, map[string]string{"SCHILY.xattr.security.capability": "\x01\x00\x00\x02\x00\x04\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00"}
	overlay := file("overlay", "")
	overlay.PAXRecords = map[string]string{"SCHILY.xattr.user.overlay.redirect": "/etc", "SCHILY.xattr.trusted.overlay.opaque": "y"}
	s := stream(t, set, overlay, tar.Header{Name: "dev", Typeflag: tar.TypeChar, Devmajor: 1, Devminor: 3})
	dir := t.TempDir()
	tally, err := into(t, dir, s, To{Owners: true, Harmless: true})
	if err != nil {
		t.Fatal(err)
	}
	if want := (Tally{Entries: 2, Bytes: 1, SetID: 1, Caps: 1, Devices: 1}); tally != want {
		t.Errorf("%+v, want %+v", tally, want)
	}
	var st unix.Stat_t
	if err := unix.Lstat(filepath.Join(dir, "setid"), &st); err != nil || st.Mode&0o7777 != 0o755 {
		t.Errorf("mode %o, %v", st.Mode, err)
	}
	for _, name := range []string{"setid", "overlay"} {
		if n, err := unix.Listxattr(filepath.Join(dir, name), nil); n != 0 || err != nil {
			t.Errorf("%s has attributes: %d bytes, %v", name, n, err)
		}
	}
	if _, err := os.Lstat(filepath.Join(dir, "dev")); !os.IsNotExist(err) {
		t.Errorf("the device: %v", err)
	}
}

// inMemory returns an empty folder in memory, if the host has one: thousands of files take a busy disk long.
func inMemory(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("/dev/shm", "berth-treetar-")
	if err != nil {
		return t.TempDir()
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

// TestOddFiles packs what could block a reader, act when it is opened, or never end.
func TestOddFiles(t *testing.T) {
	testkit.NeedsRoot(t)
	dir := filepath.Join(inMemory(t), "tree")
	do := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	do(os.MkdirAll(filepath.Join(dir, "loop/in"), 0o755))
	do(unix.Mkfifo(filepath.Join(dir, "fifo"), 0o600))
	do(unix.Mknod(filepath.Join(dir, "device"), unix.S_IFCHR|0o600, int(unix.Mkdev(10, 130)))) // a watchdog: to open it would start it
	do(unix.Mknod(filepath.Join(dir, "socket"), unix.S_IFSOCK|0o600, 0))
	f, err := os.Create(filepath.Join(dir, "sparse"))
	do(err)
	do(f.Truncate(1 << 30))
	_, err = f.WriteAt([]byte("x"), 1<<29)
	do(err)
	do(f.Close())
	many := filepath.Join(dir, "many")
	do(os.Mkdir(many, 0o755))
	const files = 4_000
	for i := range files {
		do(os.WriteFile(filepath.Join(many, strconv.Itoa(i)), nil, 0o600))
	}
	var out []byte
	var tally Tally
	do(thread.Own(func() error { // a mount namespace of its own
		if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
			return err
		}
		if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
			return err
		}
		if err := unix.Mount(dir, filepath.Join(dir, "loop/in"), "", unix.MS_BIND, ""); err != nil {
			return err
		}
		if err := unix.Mount("proc", filepath.Join(dir, "loop/in/loop"), "proc", 0, ""); err != nil {
			return err
		}
		start := time.Now()
		out, tally = pack(t, dir, From{Top: "tree"})
		t.Logf("%d entries, %d bytes in %s", tally.Entries, len(out), time.Since(start))
		return nil
	}))
	if tally.Devices != 1 || tally.Sockets != 1 || tally.Loops != 1 {
		t.Errorf("%+v, want a device, a socket and a loop left out", tally)
	}
	if len(out) > 64<<20 {
		t.Errorf("%d bytes", len(out))
	}
	to := inMemory(t)
	if _, err := into(t, to, out, To{Top: "tree", Owners: true}); err != nil {
		t.Fatal(err)
	}
	var st unix.Stat_t
	do(unix.Stat(filepath.Join(to, "tree/sparse"), &st))
	if st.Size != 1<<30 || st.Blocks*512 > 1<<20 {
		t.Errorf("the sparse file has %d bytes in %d blocks", st.Size, st.Blocks)
	}
	if names, err := os.ReadDir(filepath.Join(to, "tree/many")); len(names) != files || err != nil {
		t.Errorf("%d of %d files, %v", len(names), files, err)
	}
}

// TestDeep packs and unpacks folders nested deeper than a path can say.
func TestDeep(t *testing.T) {
	const levels = 1200 // of 4 bytes each; PATH_MAX is 4096
	work := inMemory(t)
	at, err := unix.Open(work, unix.O_RDONLY|unix.O_DIRECTORY, 0)
	for range levels {
		if err == nil {
			err = unix.Mkdirat(at, "abc", 0o755)
		}
		if err == nil {
			var next int
			next, err = OpenFolder(at, "abc")
			unix.Close(at)
			at = next
		}
	}
	if err != nil {
		t.Fatal(err)
	}
	unix.Close(at)
	out, tally := pack(t, filepath.Join(work, "abc"), From{Top: "abc"})
	if tally.Entries != levels || tally.Unreadable > 0 {
		t.Fatalf("packed %+v", tally)
	}
	to := inMemory(t)
	if tally, err = into(t, to, out, To{Top: "abc", UID: os.Getuid(), GID: os.Getgid()}); err != nil || tally.Entries != levels {
		t.Fatalf("unpacked %+v, %v", tally, err)
	}
}

// TestRaces swaps a folder for a link to a place outside while a tree is written below it, and while it is read.
func TestRaces(t *testing.T) {
	work := inMemory(t)
	in, outside := filepath.Join(work, "in"), filepath.Join(work, "outside")
	for _, dir := range []string{in, outside, filepath.Join(in, "a")} {
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(outside, "secret"), []byte("SECRET"), 0o600); err != nil {
		t.Fatal(err)
	}
	before := treetest.Read(t, outside, treetest.Whole())
	ctx, stop := context.WithCancel(t.Context())
	var swaps sync.WaitGroup
	swaps.Go(func() {
		a, away := filepath.Join(in, "a"), filepath.Join(in, "away")
		for ctx.Err() == nil {
			_ = os.Rename(a, away)
			_ = os.Symlink(outside, a)
			_ = os.Remove(a)
			_ = os.Rename(away, a)
		}
	})
	var entries []tar.Header
	for i := range 20 {
		entries = append(entries, file("a/"+strconv.Itoa(i), "x"), file("b/"+strconv.Itoa(i), "x"), file("a/secret", "x"))
	}
	s := stream(t, entries...)
	const copies = 100
	refused := 0
	for range copies {
		if _, err := into(t, in, s, To{UID: os.Getuid(), GID: os.Getgid()}); err != nil {
			refused++
		}
		if out, _ := pack(t, in, From{}); bytes.Contains(out, []byte("SECRET")) {
			t.Fatal("what lies outside was read")
		}
	}
	stop()
	swaps.Wait()
	t.Logf("%d of %d copies were refused", refused, copies)
	if after := treetest.Read(t, outside, treetest.Whole()); strings.Join(before, "\n") != strings.Join(after, "\n") {
		t.Errorf("outside was changed:\n%s\nbefore:\n%s", strings.Join(after, "\n"), strings.Join(before, "\n"))
	}
}

// FuzzUnpack unpacks any bytes: nothing outside the target changes, and no temporary file is left.
func FuzzUnpack(f *testing.F) {
	f.Add(stream(f, file("a/b", "x"), tar.Header{Name: "l", Typeflag: tar.TypeSymlink, Linkname: "a"}, tar.Header{Name: "h", Typeflag: tar.TypeLink, Linkname: "a/b"}))
	f.Add(stream(f, file("../x", "x")))
	f.Add([]byte("no tar"))
	f.Fuzz(func(t *testing.T, s []byte) {
		work := t.TempDir()
		in := filepath.Join(work, "in")
		if err := os.Mkdir(in, 0o755); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second) // a sparse file may be endless
		defer cancel()
		_, _ = Unpack(ctx, bytes.NewReader(s), To{
			Files: descriptors(t), UID: os.Getuid(), GID: os.Getgid(), Harmless: true,
			Place: func(*tar.Header) (int, string, error) {
				fd, err := unix.Open(in, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
				return fd, "", err
			},
		})
		names, err := os.ReadDir(work)
		if err != nil || len(names) != 1 {
			t.Errorf("outside there is now %v, %v", names, err)
		}
	})
}

// TestCounts: what the other side of a copy counts makes no count of this side smaller.
func TestCounts(t *testing.T) {
	for _, theirs := range []int{-1, math.MinInt, math.MaxInt} {
		tally := Tally{Unreadable: 1, Devices: 2}
		tally.Add(Tally{Unreadable: theirs, Devices: theirs})
		if tally.Unreadable < 1 || tally.Devices < 2 || tally.Failed() == nil {
			t.Errorf("with %d of the other side: %+v", theirs, tally)
		}
	}
}
