package mounts

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"berth/test/testkit"
)

// TestFiles: the node's own files cover those of its root, which do not change. A link is left alone and leads nowhere.
func TestFiles(t *testing.T) {
	testkit.NeedsRoot(t)
	dir := newTree(t)
	write(t, dir, "bottom/etc/hosts", "the image's")
	write(t, dir, "data/victim", "the host's")
	if err := os.Symlink("../../data/victim", filepath.Join(dir, "bottom/etc/resolv.conf")); err != nil {
		t.Fatal(err)
	}
	p := plan(dir)
	for _, name := range []string{"etc/hosts", "etc/hostname", "etc/resolv.conf", "new/file"} {
		p.Files = append(p.Files, File{Root: p.Root.At, Path: name, Text: "own " + name})
	}
	got, err := enter(t, p, `cat etc/hosts; echo; cat etc/hostname; echo; readlink etc/resolv.conf; cat new/file; echo
		echo mine >etc/hosts; cat etc/hosts; stat -c '%u:%g %a' etc/hosts new new/file; rm etc/hosts 2>/dev/null || echo kept; chmod u+s etc/hosts; echo 'echo ran' >etc/hosts; etc/hosts 2>/dev/null || echo no program`)
	if err != nil {
		t.Fatal(err)
	}
	want := "own etc/hosts\nown etc/hostname\n../../data/victim\nown new/file\nmine\n0:0 644\n0:0 755\n0:0 644\nkept\nno program"
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("in the node (-want +got):\n%s", diff)
	}
	for path, want := range map[string]string{"bottom/etc/hosts": "the image's", "data/victim": "the host's", "delta/upper/etc/hostname": ""} {
		if text, err := os.ReadFile(filepath.Join(dir, path)); err != nil || string(text) != want {
			t.Errorf("%s holds %q, %v; want %q", path, text, err, want)
		}
	}
}

// TestFilesInTheWay: what the node left in its delta neither stops a start nor leads a mount out of its root.
func TestFilesInTheWay(t *testing.T) {
	testkit.NeedsRoot(t)
	for name, leave := range map[string]func(upper string) error{
		"link to a folder": func(upper string) error { return os.Symlink("/dev", filepath.Join(upper, "etc")) },
		"file as folder":   func(upper string) error { return os.WriteFile(filepath.Join(upper, "etc"), nil, 0o644) },
		"folder as file":   func(upper string) error { return os.MkdirAll(filepath.Join(upper, "etc/hosts"), 0o755) },
		"link as file": func(upper string) error {
			return errors.Join(os.Mkdir(filepath.Join(upper, "etc"), 0o755), os.Symlink("/dev/null", filepath.Join(upper, "etc/hosts")))
		},
	} {
		t.Run(name, func(t *testing.T) {
			dir := newTree(t)
			if err := os.RemoveAll(filepath.Join(dir, "bottom/etc")); err != nil {
				t.Fatal(err)
			}
			if err := leave(filepath.Join(dir, "delta/upper")); err != nil {
				t.Fatal(err)
			}
			p := plan(dir)
			p.Files = []File{{Root: p.Root.At, Path: "etc/hosts", Text: "own"}}
			if got, err := enter(t, p, `cat etc/hosts 2>/dev/null || true`); err != nil || got != "" {
				t.Errorf("got %q, %v", got, err)
			}
		})
	}
}

// TestFilesForTheRuntime: files that the runtime mounts are made but not mounted.
func TestFilesForTheRuntime(t *testing.T) {
	testkit.NeedsRoot(t)
	p := plan(newTree(t))
	p.Files = []File{{Path: "etc/hosts", Text: "own"}}
	if got, err := enter(t, p, "cat "+p.FileAt(0)+"; test -e etc/hosts || echo; test -e etc/hosts || echo not mounted"); err != nil || got != "own\nnot mounted" {
		t.Errorf("got %q, %v", got, err)
	}
}
