package image

import (
	"archive/tar"
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"berth/internal/image/imagetest"
	"berth/internal/sys/refuse"
	"berth/test/testkit"
)

type E = imagetest.Entry

// unpackTo unpacks one layer into a new folder.
func unpackTo(t testing.TB, layer []byte) (string, error) {
	t.Helper()
	dir := t.TempDir()
	root, err := os.OpenRoot(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	left := Limits{Bytes: 1 << 20, Entries: 1000, Sparse: 1 << 40, Kept: 1 << 20}
	return dir, (&unpacker{}).unpack(t.Context(), root, bytes.NewReader(layer), &left)
}

// listing returns a folder as text: type and mode, owner, size or target, name.
func listing(t testing.TB, dir string) []string {
	t.Helper()
	var out []string
	err := filepath.Walk(dir, func(path string, info os.FileInfo, err error) error {
		if err != nil || path == dir {
			return err
		}
		st := info.Sys().(*syscall.Stat_t)
		line := fmt.Sprintf("%v %d:%d %s", info.Mode(), st.Uid, st.Gid, path[len(dir)+1:])
		if info.Mode()&os.ModeSymlink != 0 {
			target, _ := os.Readlink(path)
			line += " -> " + target
		}
		if info.Mode().IsRegular() {
			data, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			line += fmt.Sprintf(" %q", data)
		}
		if a := attr(path, opaqueAttr); a != "" {
			line += " opaque"
		}
		out = append(out, line)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func attr(path, name string) string {
	buf := make([]byte, 100)
	n, err := unix.Lgetxattr(path, name, buf)
	if err != nil {
		return ""
	}
	return string(buf[:n])
}

func TestUnpack(t *testing.T) {
	testkit.NeedsRoot(t)
	old := syscall.Umask(0o077) // modes come from the archive, whatever the caller's umask
	defer syscall.Umask(old)
	long := strings.Repeat("n", 200)
	for name, c := range map[string]struct {
		in   []E
		want []string
	}{
		"kinds": {
			in: []E{
				{Name: "./d/", Type: tar.TypeDir, Mode: 0o1777, UID: 5, GID: 6},
				{Name: "./d/f", Data: "x", Mode: 0o4755, UID: 65535, GID: 1},
				{Name: "d/h", Type: tar.TypeLink, Link: "./d/f"},
				{Name: "d/l", Type: tar.TypeSymlink, Link: "/etc/../../outside", UID: 3},
				{Name: "p", Type: tar.TypeFifo, Mode: 0o622},
			},
			want: []string{
				"dtrwxrwxrwx 5:6 d", `urwxr-xr-x 65535:1 d/f "x"`, `urwxr-xr-x 65535:1 d/h "x"`,
				"Lrwxrwxrwx 3:0 d/l -> /etc/../../outside", "prw--w--w- 0:0 p",
			},
		},
		"parents and long names": {
			in:   []E{{Name: "a/b/" + long + "/" + long, Data: "x"}},
			want: []string{"drwxr-xr-x 0:0 a", "drwxr-xr-x 0:0 a/b", "drwxr-xr-x 0:0 a/b/" + long, `-rw-r--r-- 0:0 a/b/` + long + "/" + long + ` "x"`},
		},
		"absolute names": {
			in: []E{
				{Name: "/", Type: tar.TypeDir},
				{Name: "/app/x", Data: "x"},
				{Name: "//app/h", Type: tar.TypeLink, Link: "/app/x"},
				{Name: "/app/.wh.y"},
				{Name: "/o/.wh..wh..opq"},
				{Name: "/dev/null", Type: tar.TypeChar, Major: 1, Minor: 3},
			},
			want: []string{
				"drwxr-xr-x 0:0 app", `-rw-r--r-- 0:0 app/h "x"`, `-rw-r--r-- 0:0 app/x "x"`, "Dc--------- 0:0 app/y",
				"drwxr-xr-x 0:0 dev", "drwxr-xr-x 0:0 o opaque",
			},
		},
		"whiteouts": {
			in: []E{
				{Name: "d/.wh.x"},
				{Name: "o/.wh..wh..opq"},
				{Name: ".wh..wh.plnk/1"},
				{Name: "n/", Type: tar.TypeDir},
				{Name: ".wh.n"},
				{Name: ".wh.f"},
				{Name: "f", Data: "new"},
				{Name: ".wh.g"},
				{Name: "g/y", Data: "y"},
			},
			want: []string{
				"drwxr-xr-x 0:0 d", "Dc--------- 0:0 d/x", `-rw-r--r-- 0:0 f "new"`,
				"drwxr-xr-x 0:0 g opaque", `-rw-r--r-- 0:0 g/y "y"`, "drwxr-xr-x 0:0 n opaque", "drwxr-xr-x 0:0 o opaque",
			},
		},
		"the later entry wins": {
			in: []E{
				{Name: "a", Data: "1"},
				{Name: "a", Data: "2"},
				{Name: "b/c", Data: "1"},
				{Name: "b", Type: tar.TypeSymlink, Link: "a"},
				{Name: "l", Type: tar.TypeSymlink, Link: "."},
				{Name: "l/", Type: tar.TypeDir, Mode: 0o700},
			},
			want: []string{`-rw-r--r-- 0:0 a "2"`, "Lrwxrwxrwx 0:0 b -> a", "drwx------ 0:0 l"},
		},
		"through links that lead out": { // as in a chroot; what they lead to may be in a layer below
			in: []E{
				{Name: "var/run", Type: tar.TypeSymlink, Link: "/run"},
				{Name: "var/run/x", Data: "x"},
				{Name: "var/run/.wh.y"},
				{Name: "h", Type: tar.TypeLink, Link: "var/run/x"},
				{Name: "var/lock", Type: tar.TypeSymlink, Link: "../../../../var/run/lock"},
				{Name: "var/lock/.wh..wh..opq"},
				{Name: "var/lock/d/", Type: tar.TypeDir, Mode: 0o700},
				{Name: "var/lock/d/e/z", Data: "z"},
				{Name: "a", Type: tar.TypeSymlink, Link: "b"},
				{Name: "b", Type: tar.TypeSymlink, Link: ".."},
				{Name: "a/top", Data: "t"},
				{Name: "run/lock/d", Data: "no folder now"},
			},
			want: []string{
				"Lrwxrwxrwx 0:0 a -> b", "Lrwxrwxrwx 0:0 b -> ..", `-rw-r--r-- 0:0 h "x"`, "drwxr-xr-x 0:0 run",
				"drwxr-xr-x 0:0 run/lock opaque", `-rw-r--r-- 0:0 run/lock/d "no folder now"`, `-rw-r--r-- 0:0 run/x "x"`, "Dc--------- 0:0 run/y",
				`-rw-r--r-- 0:0 top "t"`, "drwxr-xr-x 0:0 var", "Lrwxrwxrwx 0:0 var/lock -> ../../../../var/run/lock", "Lrwxrwxrwx 0:0 var/run -> /run",
			},
		},
		"through a link whose target goes up": { // from where its first part leads, as in a chroot
			in: []E{
				{Name: "d/e/f/", Type: tar.TypeDir},
				{Name: "l", Type: tar.TypeSymlink, Link: "d/e"},
				{Name: "k", Type: tar.TypeSymlink, Link: "/l/../new/there/../"},
				{Name: "k/x", Data: "x"},
				{Name: "d/m", Type: tar.TypeSymlink, Link: "../l/f/../.././own"},
				{Name: "d/m/y", Data: "y"},
			},
			want: []string{
				"drwxr-xr-x 0:0 d", "drwxr-xr-x 0:0 d/e", "drwxr-xr-x 0:0 d/e/f", "Lrwxrwxrwx 0:0 d/m -> ../l/f/../.././own", "drwxr-xr-x 0:0 d/new",
				"drwxr-xr-x 0:0 d/new/there", `-rw-r--r-- 0:0 d/new/x "x"`, "drwxr-xr-x 0:0 d/own", `-rw-r--r-- 0:0 d/own/y "y"`,
				"Lrwxrwxrwx 0:0 k -> /l/../new/there/../", "Lrwxrwxrwx 0:0 l -> d/e",
			},
		},
		"through a link that stays inside": {
			in:   []E{{Name: "usr/lib/", Type: tar.TypeDir}, {Name: "lib", Type: tar.TypeSymlink, Link: "usr/lib"}, {Name: "lib/x", Data: "x"}},
			want: []string{"Lrwxrwxrwx 0:0 lib -> usr/lib", "drwxr-xr-x 0:0 usr", "drwxr-xr-x 0:0 usr/lib", `-rw-r--r-- 0:0 usr/lib/x "x"`},
		},
	} {
		t.Run(name, func(t *testing.T) {
			dir, err := unpackTo(t, imagetest.Layer(t, c.in...))
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(c.want, listing(t, dir)); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestUnpackAttributes(t *testing.T) {
	testkit.NeedsRoot(t)
	capability := "\x01\x00\x00\x02\x00\x04\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00" // cap_net_bind_service+ep
	dir, err := unpackTo(t, imagetest.Layer(t, E{Name: "d", Type: tar.TypeDir, Xattrs: map[string]string{
		"trusted.overlay.redirect": "/etc", "trusted.overlay.opaque": "y", "user.overlay.opaque": "y",
	}}, E{Name: "d/f", UID: 7, Mode: 0o755, Xattrs: map[string]string{"user.a": "b", "security.capability": capability, "security.selinux": "x"}}))
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]string{}
	for _, a := range []string{"trusted.overlay.redirect", "trusted.overlay.opaque", "user.overlay.opaque", "user.a", "security.capability", "security.selinux"} {
		got[a] = attr(filepath.Join(dir, "d"), a) + attr(filepath.Join(dir, "d/f"), a)
	}
	want := map[string]string{
		"trusted.overlay.redirect": "", "trusted.overlay.opaque": "", "user.overlay.opaque": "",
		"user.a": "b", "security.capability": capability, "security.selinux": "",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func TestUnpackRefuses(t *testing.T) {
	testkit.NeedsRoot(t)
	for name, c := range map[string]struct {
		in   []E
		says string // part of the expected message
	}{
		"climbing name":         {[]E{{Name: "a/../../b"}}, "climb"},
		"climbing inside":       {[]E{{Name: "a/../b"}}, "climb"},
		"no name":               {[]E{{Name: ""}}, "no name"},
		"climbing from the top": {[]E{{Name: "/../etc/passwd"}}, "climb"},
		"absolute link climbs":  {[]E{{Name: "x", Type: tar.TypeLink, Link: "/../etc/passwd"}}, "climb"},
		"absolute hard link":    {[]E{{Name: "x", Type: tar.TypeLink, Link: "/etc/passwd"}}, "does not hold"},
		"climbing hard link":    {[]E{{Name: "x", Type: tar.TypeLink, Link: "../x"}}, "climb"},
		"hard link to nothing":  {[]E{{Name: "x", Type: tar.TypeLink, Link: "y"}}, "does not hold"},
		"hard link to a folder": {[]E{{Name: "d", Type: tar.TypeDir}, {Name: "x", Type: tar.TypeLink, Link: "d"}}, "is a folder"},
		"hard link by a link":   {[]E{{Name: "l", Type: tar.TypeSymlink, Link: "/etc"}, {Name: "x", Type: tar.TypeLink, Link: "l/passwd"}}, "does not hold"},
		"a ring that dangles":   {[]E{{Name: "a", Type: tar.TypeSymlink, Link: "b/x"}, {Name: "b", Type: tar.TypeSymlink, Link: "a/x"}, {Name: "a/x"}}, `entry "a/x"`},
		"a link to a file":      {[]E{{Name: "f"}, {Name: "l", Type: tar.TypeSymlink, Link: "/f"}, {Name: "l/x"}}, "not a folder"},
		"links in a ring":       {[]E{{Name: "a", Type: tar.TypeSymlink, Link: "a"}, {Name: "a/x"}}, `entry "a/x"`},
		"block device":          {[]E{{Name: "sda", Type: tar.TypeBlock, Major: 8}}, "device nodes"},
		"character device":      {[]E{{Name: "mem", Type: tar.TypeChar, Major: 1, Minor: 1}}, "device nodes"},
		"ready-made whiteout":   {[]E{{Name: "w", Type: tar.TypeChar}}, "device nodes"},
		"owner beyond":          {[]E{{Name: "f", UID: 65536}}, "65535"},
		"group beyond":          {[]E{{Name: "f", GID: 100000}}, "65535"},
		"below a file":          {[]E{{Name: "f"}, {Name: "f/x"}}, `entry "f/x"`},
		"too large":             {[]E{{Name: "f", Data: strings.Repeat("x", 1<<20+1)}}, "limit"},
		"too many":              {[]E{{Name: strings.Repeat("a/", 1500) + "x"}}, "limit"},
		"long component":        {[]E{{Name: strings.Repeat("a", 300)}}, `entry "aaa`},
		"whiteout of nothing":   {[]E{{Name: ".wh."}}, "removes nothing"},
		"whiteout of ..":        {[]E{{Name: "d/.wh..."}}, "removes nothing"},
		"root as a file":        {[]E{{Name: "."}}, "root must be a folder"},
		"root as a link":        {[]E{{Name: "./", Type: tar.TypeSymlink, Link: "/"}}, "root must be a folder"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := unpackTo(t, imagetest.Layer(t, c.in...))
			if refuse.KindOf(err) != refuse.Invalid || !strings.Contains(err.Error(), c.says) {
				t.Errorf("got %v, want a refusal about %q", err, c.says)
			}
		})
	}
}

func TestUnpackTimes(t *testing.T) {
	testkit.NeedsRoot(t)
	dir, err := unpackTo(t, imagetest.Layer(t, E{Name: "d", Type: tar.TypeDir}, E{Name: "d/f", Data: "x"}, E{Name: "d/l", Type: tar.TypeSymlink, Link: "f"}))
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range []string{"d", "d/f", "d/l"} {
		info, err := os.Lstat(filepath.Join(dir, f))
		if err != nil || info.ModTime().Unix() > 0 {
			t.Errorf("%s: %v %v, want the archive's time", f, info.ModTime(), err)
		}
	}
}

// TestOverlayAgrees mounts the layers of a realistic stack. It compares what the kernel shows with the expected files
// and with what tree reads from the layers.
func TestOverlayAgrees(t *testing.T) {
	s := newStore(t)
	img := imagetest.Image{Layers: [][]byte{
		imagetest.Layer(t,
			E{Name: "keep", Data: "1"}, E{Name: "drop", Data: "1"}, E{Name: "dir/old", Data: "1"}, E{Name: "swap/old", Data: "1"},
			E{Name: "anew/old", Data: "1"}, E{Name: "merge/a", Data: "1"},
		),
		imagetest.Layer(t,
			E{Name: ".wh.drop"}, E{Name: "dir/.wh..wh..opq"}, E{Name: "dir/new", Data: "2"}, E{Name: "swap", Data: "2"},
			E{Name: ".wh.anew"}, E{Name: "anew", Type: tar.TypeDir}, E{Name: "merge/b", Data: "2"},
		),
		imagetest.Layer(t),
		imagetest.Layer(t, E{Name: "merge/.wh.a"}, E{Name: "swap/now", Data: "4"}, E{Name: "link", Type: tar.TypeSymlink, Link: "/merge/../merge/b"}),
		imagetest.Layer(t),
	}}
	if _, err := s.Import(t.Context(), imagetest.OCIArchive(t, img), As{Name: "x"}, nil); err != nil {
		t.Fatal(err)
	}
	r, err := s.Get("x")
	if err != nil || len(r.Layers) != 4 { // the empty layer counts once
		t.Fatal(r.Layers, err)
	}
	lowers, err := topFirst(s.dir, r.Layers)
	if err != nil {
		t.Fatal(err)
	}
	want := []string{"anew/", "dir/", "dir/new", "keep", "link", "merge/", "merge/b", "swap/", "swap/now"}
	if diff := cmp.Diff(want, overlayNames(t, lowers)); diff != "" {
		t.Error(diff)
	}
	tr, err := openTree(lowers)
	if err != nil {
		t.Fatal(err)
	}
	defer tr.close()
	for name, there := range map[string]bool{
		"keep": true, "drop": false, "dir/new": true, "dir/old": false, "swap/now": true, "swap/old": false,
		"anew/old": false, "merge/a": false, "merge/b": true, "link": true, "keep/x": false, "../../keep": true, "link/..": false,
	} {
		if _, _, err := tr.resolve(name); (err == nil) != there {
			t.Errorf("tree has %s: %v", name, err)
		}
	}
}

// overlayNames mounts lowers in a mount namespace that ends with its thread, and lists the files.
func overlayNames(t *testing.T, lowers []string) (names []string) {
	t.Helper()
	at := t.TempDir()
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine, and its namespace with it
		done <- func() error {
			if err := unix.Unshare(unix.CLONE_FS | unix.CLONE_NEWNS); err != nil {
				return err
			}
			if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
				return err
			}
			if err := unix.Mount("overlay", at, "overlay", unix.MS_RDONLY, "lowerdir="+strings.Join(lowers, ":")); err != nil {
				return err
			}
			return filepath.Walk(at, func(path string, info os.FileInfo, err error) error {
				if err != nil || path == at {
					return err
				}
				name := path[len(at)+1:]
				if info.IsDir() {
					name += "/"
				}
				names = append(names, name)
				return nil
			})
		}()
	}()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	return names
}
