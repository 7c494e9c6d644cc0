package users

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
	"pgregory.net/rapid"

	"berth/internal/sys/refuse"
)

const (
	passwd = "root:x:0:0::/:\napp:x:10:20::/home/app:/bin/sh\nbad:x:::/:\nshort:x\nhigh:x:70000:1::/:\n"
	group  = "root:x:0:\nweb:x:30:app,root\nlog:x:25:other,app\nown:x:20:app\nweb2:x:30:app\ndamaged:x:?:app\ncut:x\n"
)

func node(t testing.TB) string {
	t.Helper()
	root := t.TempDir()
	if err := os.Mkdir(filepath.Join(root, "etc"), 0o755); err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{"passwd": passwd, "group": group} {
		if err := os.WriteFile(filepath.Join(root, "etc", name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return root
}

// has is a node that has one user above 65535, 100001, and one group, 100002.
func has(gid bool, id uint32) bool { return id < 1<<16 || id == 100001 && !gid || id == 100002 && gid }

// TestLongLines: a group of thousands of members does not hide what stands after it. A file that is too long to be read says so, and is not read
// in part.
func TestLongLines(t *testing.T) {
	root := node(t)
	write := func(name, text string) {
		if err := os.WriteFile(filepath.Join(root, "etc", name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	many := strings.Repeat("member,", 80<<10/7)
	write("group", "all:x:7:"+many+"app\n"+group)
	write("passwd", "note:x:1:1:"+many+":/:\n"+passwd+"last:x:5:6::/:")
	for who, want := range map[string]User{"app": {10, 20, []uint32{20, 7, 25, 30}}, "app:own": {10, 20, []uint32{20}}, "last": {5, 6, []uint32{6}}} {
		if got, err := Find(In(root), has, who); err != nil || !cmp.Equal(got, want) {
			t.Errorf("%q: %+v, %v", who, got, err)
		}
	}
	for _, name := range []string{"group", "passwd"} {
		for what, text := range map[string]string{"lines": strings.Repeat("other:x:1:1::/:\n", 5<<20/16), "one line": strings.Repeat("x", 5<<20), "zeros": strings.Repeat("\x00", 5<<20)} {
			write("group", group)
			write("passwd", passwd)
			write(name, text)
			if _, err := Find(In(root), has, "app"); refuse.KindOf(err) != refuse.Invalid || !strings.Contains(err.Error(), "/etc/"+name+" has more than 4 MiB") {
				t.Errorf("%s of %s: %v", name, what, err)
			}
		}
	}
}

func TestFind(t *testing.T) {
	t.Parallel()
	root := node(t)
	for who, want := range map[string]struct {
		user User
		kind refuse.Kind
	}{
		"root": {user: User{Groups: []uint32{0, 30}}}, "0": {user: User{Groups: []uint32{0, 30}}},
		"app": {user: User{10, 20, []uint32{20, 25, 30}}}, "10": {user: User{10, 20, []uint32{20, 25, 30}}},
		"77": {user: User{77, 0, []uint32{0}}}, "app:web": {user: User{10, 30, []uint32{30}}}, "100001": {user: User{100001, 0, []uint32{0}}}, "100001:100002": {user: User{100001, 100002, []uint32{100002}}}, "100002": {kind: refuse.Invalid}, "0:100001": {kind: refuse.Invalid},
		"77:88":  {user: User{77, 88, []uint32{88}}},
		":web":   {user: User{0, 30, []uint32{30}}},
		"nobody": {kind: refuse.Invalid}, "bad": {kind: refuse.Invalid}, "short": {kind: refuse.Invalid}, "high": {kind: refuse.Invalid},
		"app:none": {kind: refuse.Invalid}, "app:cut": {kind: refuse.Invalid}, "app:damaged": {kind: refuse.Invalid},
		"70000": {kind: refuse.Invalid}, "1:70000": {kind: refuse.Invalid}, "-1": {kind: refuse.Invalid},
	} {
		got, err := Find(In(root), has, who)
		if refuse.KindOf(err) != want.kind || !cmp.Equal(got, want.user) {
			t.Errorf("%q: %+v, %v; want %+v, %v", who, got, err, want.user, want.kind)
		}
	}
}

// TestStaysInside checks that a node cannot lead the lookup out of its root, or make it wait.
func TestStaysInside(t *testing.T) {
	t.Parallel()
	outside := t.TempDir()
	if err := os.WriteFile(filepath.Join(outside, "passwd"), []byte("spy:x:1:1::/:\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, make := range map[string]func(path string) error{
		"absolute link": func(p string) error { return os.Symlink(filepath.Join(outside, "passwd"), p) },
		"link upwards":  func(p string) error { return os.Symlink(strings.Repeat("../", 30)+outside+"/passwd", p) },
		"magic link":    func(p string) error { return os.Symlink("/proc/self/root"+outside+"/passwd", p) },
		"FIFO":          func(p string) error { return unix.Mkfifo(p, 0o600) },
		"folder":        func(p string) error { return os.Mkdir(p, 0o700) },
	} {
		root := node(t)
		p := filepath.Join(root, "etc/passwd")
		if err := os.Remove(p); err != nil {
			t.Fatal(err)
		}
		if err := make(p); err != nil {
			t.Fatal(err)
		}
		if u, err := Find(In(root), has, "spy"); refuse.KindOf(err) != refuse.Invalid {
			t.Errorf("%s: found %+v, %v", name, u, err)
		}
	}
}

// TestAnyFile checks that no content of the files leads to an id that a node cannot have.
func TestAnyFile(t *testing.T) {
	t.Parallel()
	root := node(t)
	line := rapid.StringMatching(`[a-c0-9:,x]{0,12}`)
	rapid.Check(t, func(t *rapid.T) {
		for _, name := range []string{"passwd", "group"} {
			text := strings.Join(rapid.SliceOfN(line, 0, 6).Draw(t, name), "\n")
			if err := os.WriteFile(filepath.Join(root, "etc", name), []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		u, err := Find(In(root), has, rapid.StringMatching(`[a-c0-9]{1,6}(:[a-c0-9]{1,6})?`).Draw(t, "who"))
		if err != nil && refuse.KindOf(err) != refuse.Invalid {
			t.Fatalf("not a refusal: %v", err)
		}
		for _, id := range append(u.Groups, u.UID, u.GID) {
			if !has(false, id) && !has(true, id) {
				t.Fatalf("id %d in %+v", id, u)
			}
		}
	})
}
