package packed

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"berth/internal/sys/file"
	"berth/internal/sys/refuse"
	"berth/test/testkit"
)

func nobody(string) ([]string, error) { return nil, nil }

// TestTrust: a foreign file is refused, then copied; nobody can change the copy by changing the file.
func TestTrust(t *testing.T) {
	for _, kind := range kinds(t) {
		t.Run(string(kind), func(t *testing.T) {
			s, dir := newStore(t)
			path := filepath.Join(dir, "foreign."+string(kind))
			mkfs(t, path)
			_, _, err := s.Resolve(path)
			if refuse.KindOf(err) != refuse.Cannot || !strings.Contains(err.Error(), "berth image trust "+path) {
				t.Fatalf("a foreign file: %v", err)
			}
			r, err := s.Trust(t.Context(), path)
			testkit.Must(t, err)
			f, _, err := s.Resolve(path)
			testkit.Must(t, err)
			if f.Path != s.file(r.Digest) {
				t.Errorf("mounted is %s", f.Path)
			}
			before := tree(t, f)
			// Changed in place, with its time and size put back, as its owner can: it is a stranger's again, and the copy is as it was.
			info, err := os.Stat(path)
			testkit.Must(t, err)
			out, err := os.OpenFile(path, os.O_WRONLY, 0)
			testkit.Must(t, err)
			_, err = out.WriteAt(bytes.Repeat([]byte{0xff}, 200), 1024)
			testkit.Must(t, err, out.Close(), os.Chtimes(path, time.Time{}, info.ModTime()))
			if _, _, err := s.Resolve(path); err == nil {
				t.Error("a changed file is trusted")
			}
			if diff := cmp.Diff(before, tree(t, f)); diff != "" {
				t.Error(diff)
			}
			_, err = s.Remove(t.Context(), "file:"+path, nobody)
			testkit.Must(t, err)
			if left, _ := os.ReadDir(s.files()); len(left) > 0 {
				t.Errorf("left: %v", left)
			}
		})
	}
}

// TestPackedFileChanged: a file that berth packed is mounted where it is as long as only root could change it, and did not.
func TestPackedFileChanged(t *testing.T) {
	kinds(t)
	for name, c := range map[string]struct {
		do   func(path string) error
		at   string // what is resolved; "": the file
		kind refuse.Kind
	}{
		"untouched":           {func(string) error { return nil }, "", 0},
		"renamed":             {func(p string) error { return os.Rename(p, p+".erofs") }, ".erofs", 0},
		"touched":             {func(p string) error { return os.Chtimes(p, time.Time{}, time.Unix(1, 0)) }, "", 0},
		"others may write it": {func(p string) error { return os.Chmod(p, 0o620) }, "", refuse.Cannot},
		"another's":           {func(p string) error { return os.Chown(p, 1000, 0) }, "", refuse.Cannot},
		"a copy": {func(p string) error {
			data, err := os.ReadFile(p)
			if err == nil {
				err = os.WriteFile(p+".erofs", data, 0o600)
			}
			return err
		}, ".erofs", refuse.Cannot},
		"a copy with the same inode elsewhere": {func(p string) error { // on a file system that somebody made
			data, err := os.ReadFile(p)
			testkit.Must(t, err, os.WriteFile(p+".erofs", data, 0o600))
			_, st, err := open(p + ".erofs")
			testkit.Must(t, err)
			return editRecord(t, p, func(r *Record) { r.Places[0].ID.Inode = st.Ino; r.Places[0].ID.Dev++ })
		}, ".erofs", refuse.Cannot},
		"written to": {func(p string) error {
			data, err := os.ReadFile(p)
			if err == nil {
				data[len(data)/2]++
				err = os.WriteFile(p, data, 0o600)
			}
			return err
		}, "", refuse.Cannot},
		"written to, its time put back": {func(p string) error { // what root in a node with that folder can do
			before, err := os.Stat(p)
			testkit.Must(t, err)
			data, err := os.ReadFile(p)
			testkit.Must(t, err)
			data[len(data)/2]++
			testkit.Must(t, os.WriteFile(p, data, 0o600))
			return os.Chtimes(p, time.Time{}, before.ModTime())
		}, "", refuse.Cannot},
		"cut short":       {func(p string) error { return os.Truncate(p, 5000) }, "", refuse.Cannot},
		"removed":         {os.Remove, "", refuse.NotFound},
		"something else":  {func(p string) error { return os.WriteFile(p, []byte("text"), 0o600) }, "", refuse.Invalid},
		"now a folder":    {func(p string) error { testkit.Must(t, os.Remove(p)); return os.Mkdir(p, 0o700) }, "", refuse.Invalid},
		"another's by it": {func(p string) error { testkit.Must(t, os.Remove(p)); mkfs(t, p); return nil }, "", refuse.Cannot},
	} {
		t.Run(name, func(t *testing.T) {
			s, dir := newStore(t)
			path := filepath.Join(dir, "x.erofs")
			pack(t, s, path)
			testkit.Must(t, c.do(path))
			f, _, err := s.Resolve(path + c.at)
			if refuse.KindOf(err) != c.kind {
				t.Fatalf("got kind %d: %v; want %d", refuse.KindOf(err), err, c.kind)
			}
			if err == nil {
				tree(t, f)
			}
		})
	}
}

// editRecord changes the only record of the store beside a packed file.
func editRecord(t *testing.T, path string, change func(*Record)) error {
	t.Helper()
	s := In(filepath.Join(filepath.Dir(path), "store"))
	all, err := s.List()
	testkit.Must(t, err)
	if len(all) != 1 {
		t.Fatalf("records: %+v", all)
	}
	change(&all[0])
	return file.WriteJSON(s.record(hexOf(all[0].Digest)), all[0])
}

// TestTrustMends: names need not be UTF-8; a copy that has rotted in the store is replaced, one that is whole is not; and what is no
// packed image is refused before it is copied.
func TestTrustMends(t *testing.T) {
	kinds(t)
	s, dir := newStore(t)
	tree := filepath.Join(dir, "tree")
	odd := filepath.Join(tree, "caf\xe9", "\xff")
	testkit.Must(t, os.MkdirAll(odd, 0o755), os.WriteFile(filepath.Join(odd, "f\xfe"), []byte("text"), 0o600))
	path := filepath.Join(dir, "odd.erofs")
	if out, err := exec.Command("mkfs.erofs", "--quiet", path, tree).CombinedOutput(); err != nil {
		t.Fatalf("mkfs.erofs: %v: %s", err, out)
	}
	r, err := s.Trust(t.Context(), path)
	testkit.Must(t, err)
	inode := func() uint64 {
		f, st, err := open(s.file(r.Digest))
		testkit.Must(t, err)
		f.Close()
		return st.Ino
	}
	before := inode()
	_, err = s.Trust(t.Context(), path)
	testkit.Must(t, err)
	if inode() != before {
		t.Error("a whole copy was replaced")
	}
	testkit.Must(t, os.Chmod(s.file(r.Digest), 0o600))
	out, err := os.OpenFile(s.file(r.Digest), os.O_WRONLY, 0)
	testkit.Must(t, err)
	_, err = out.WriteAt([]byte("rot"), 2000)
	testkit.Must(t, err, out.Close())
	_, err = s.Trust(t.Context(), path)
	testkit.Must(t, err)
	if data, err := os.ReadFile(s.file(r.Digest)); err != nil || bytes.Contains(data, []byte("rot")) {
		t.Errorf("the rotten copy is still there: %v", err)
	}
	if left, _ := os.ReadDir(s.files()); len(left) != 1 {
		t.Errorf("left: %v", left)
	}
	huge := filepath.Join(dir, "huge.tar")
	testkit.Must(t, os.WriteFile(huge, []byte("text"), 0o600), os.Truncate(huge, 1<<42)) // more than any disk has room for
	if _, err := s.Trust(t.Context(), huge); refuse.KindOf(err) != refuse.Invalid {
		t.Errorf("an archive: %v", err)
	}
}

// TestChangedBetween: a file that changes after it was looked at is not mounted.
func TestChangedBetween(t *testing.T) {
	kinds(t)
	s, dir := newStore(t)
	path := filepath.Join(dir, "x.erofs")
	pack(t, s, path)
	f, _, err := s.Resolve(path)
	testkit.Must(t, err)
	other := filepath.Join(dir, "other.erofs")
	mkfs(t, other)
	testkit.Must(t, os.Rename(other, path))
	if m, err := f.Mount(t.Context()); refuse.KindOf(err) != refuse.Cannot {
		t.Errorf("mounted another file: %v, %v", m, err)
	}
	testkit.Must(t, os.Remove(path), os.Symlink("/etc/passwd", path))
	if m, err := f.Mount(t.Context()); err == nil {
		t.Errorf("followed a link: %v", m)
	}
}

// TestDamaged: what is no whole file system is refused, and nothing of it is kept.
func TestDamaged(t *testing.T) {
	kinds(t)
	s, dir := newStore(t)
	whole := map[Kind][]byte{}
	for _, k := range kinds(t) {
		path := filepath.Join(dir, "whole."+string(k))
		pack(t, s, path)
		data, err := os.ReadFile(path)
		testkit.Must(t, err)
		whole[k] = data
		_, err = s.Remove(t.Context(), "file:"+path, nobody)
		testkit.Must(t, err)
	}
	damage := func(k Kind, at, n int) []byte {
		data := bytes.Clone(whole[k])
		for i := range n {
			data[at+i] ^= 0x5a
		}
		return data
	}
	end := len(whole[EROFS])
	for name, c := range map[string]struct {
		file string
		data []byte
		says string
	}{
		"empty":                 {"a.erofs", nil, "neither erofs nor squashfs"},
		"text":                  {"a.erofs", []byte(strings.Repeat("text ", 1000)), "neither erofs nor squashfs"},
		"nothing but a magic":   {"a.squashfs", []byte("hsqs"), "damaged"},
		"erofs, cut":            {"a.erofs", whole[EROFS][:4096], "damaged"},
		"erofs, in superblock":  {"a.erofs", whole[EROFS][:1030], "damaged"},
		"erofs, superblock":     {"a.erofs", damage(EROFS, 1036, 20), "damaged"},
		"erofs, inodes":         {"a.erofs", damage(EROFS, 1200, 2800), "damaged"},
		"squashfs, cut":         {"a.squashfs", whole[SquashFS][:600], "damaged"},
		"squashfs, superblock":  {"a.squashfs", damage(SquashFS, 4, 90), ""},
		"its trailer":           {"a.erofs", damage(EROFS, end-4096, 5), "another digest"},
		"its trailer's length":  {"a.erofs", damage(EROFS, end-64+12, 4), "do not fit"},
		"its trailer's version": {"a.erofs", damage(EROFS, end-64+8, 1), "newer berth"},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), c.file)
			testkit.Must(t, os.WriteFile(path, c.data, 0o600))
			_, err := s.Trust(t.Context(), path)
			if k := refuse.KindOf(err); k != refuse.Invalid && k != refuse.Cannot || !strings.Contains(err.Error(), c.says) {
				t.Errorf("got kind %d: %v; want it to say %q", k, err, c.says)
			}
			if left, _ := os.ReadDir(s.files()); len(left) > 0 {
				t.Errorf("left: %v", left)
			}
			if all, err := s.List(); err != nil || len(all) > 0 {
				t.Errorf("recorded: %+v, %v", all, err)
			}
		})
	}
}

// TestTrustOnAFullDisk: a copy that does not fit is refused, and nothing of it is kept.
func TestTrustOnAFullDisk(t *testing.T) {
	kinds(t)
	dir := t.TempDir()
	small := filepath.Join(dir, "small")
	testkit.Must(t, os.Mkdir(small, 0o700), unix.Mount("berth-test", small, "tmpfs", 0, "size=64k"))
	t.Cleanup(func() { testkit.Must(t, unix.Unmount(small, 0)) })
	path := filepath.Join(dir, "x.erofs")
	mkfs(t, path)
	testkit.Must(t, os.Truncate(path, 1<<20))
	_, err := In(small).Trust(t.Context(), path)
	if refuse.KindOf(err) != refuse.Cannot || !strings.Contains(err.Error(), "MiB free") {
		t.Errorf("got kind %d: %v", refuse.KindOf(err), err)
	}
	if left, _ := os.ReadDir(filepath.Join(small, "files")); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
}

// TestForget: what a node uses stays; what is gone is pruned; what kills left is swept.
func TestForget(t *testing.T) {
	kinds(t)
	s, dir := newStore(t)
	a, b := filepath.Join(dir, "a.erofs"), filepath.Join(dir, "b.erofs")
	packed := pack(t, s, a)
	mkfs(t, b)
	trusted, err := s.Trust(t.Context(), b)
	testkit.Must(t, err)
	used := func(digest string) ([]string, error) {
		if digest == trusted.Digest {
			return []string{"wn-001"}, nil
		}
		return nil, nil
	}
	if _, err := s.Remove(t.Context(), "file:"+b, used); refuse.KindOf(err) != refuse.Busy || !strings.Contains(err.Error(), "wn-001") {
		t.Errorf("remove what is used: %v", err)
	}
	if _, err := s.Remove(t.Context(), "file:/nothing", nobody); refuse.KindOf(err) != refuse.NotFound {
		t.Errorf("remove what is not there: %v", err)
	}
	testkit.Must(t, os.Remove(a), os.Remove(b))
	// The files that a kill leaves.
	testkit.Must(t, os.WriteFile(s.file("sha256:abc"), nil, 0o400), os.WriteFile(s.record("abc")+file.Unwritten, nil, 0o600))
	forgotten, err := s.Prune(t.Context(), used)
	testkit.Must(t, err)
	if !slices.Equal(forgotten, []string{"file:" + a}) {
		t.Errorf("prune says that it forgets %q", forgotten)
	}
	all, err := s.List()
	testkit.Must(t, err)
	if len(all) != 1 || all[0].Digest != trusted.Digest || !all[0].contains(b) {
		t.Errorf("after prune: %+v", all)
	}
	if _, err := os.Stat(s.record(hexOf(packed.Digest))); err == nil {
		t.Error("the file that is gone is still recorded")
	}
	for _, path := range []string{s.file("sha256:abc"), s.record("abc") + file.Unwritten} {
		if _, err := os.Stat(path); err == nil {
			t.Errorf("%s is left", path)
		}
	}
	testkit.Must(t, os.WriteFile(s.record(hexOf(trusted.Digest)), []byte("{"), 0o600))
	if all, err := s.List(); err != nil || len(all) != 1 || all[0].Broken == "" {
		t.Errorf("a broken record: %+v, %v", all, err)
	}
	_, err = s.Prune(t.Context(), nobody)
	testkit.Must(t, err)
	_, err = s.Remove(t.Context(), all[0].Digest, nobody)
	testkit.Must(t, err)
	if left, _ := os.ReadDir(s.files()); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
}

// FuzzTrailer reads any end of a file.
func FuzzTrailer(f *testing.F) {
	t := Trailer{Image: "x", Config: json.RawMessage(`{}`)}
	out, err := os.CreateTemp(f.TempDir(), "")
	if err != nil {
		f.Fatal(err)
	}
	if err := out.Truncate(4096); err != nil {
		f.Fatal(err)
	}
	if err := t.appendTo(out); err != nil {
		f.Fatal(err)
	}
	data, err := os.ReadFile(out.Name())
	if err != nil {
		f.Fatal(err)
	}
	f.Add(data)
	f.Add(append(bytes.Clone(data[:4096]), data[4097:]...))
	f.Fuzz(func(_ *testing.T, data []byte) {
		_, _ = readTrailer(bytes.NewReader(data), int64(len(data)))
	})
}

// TestSweepHalfMade: a store that a kill or a power cut left without its folder of copies stops no repair, and is whole again with the next image.
func TestSweepHalfMade(t *testing.T) {
	s, _ := newStore(t)
	testkit.Must(t, s.make(), os.RemoveAll(s.files()), s.Sweep(t.Context()), s.make(), s.Sweep(t.Context()))
}
