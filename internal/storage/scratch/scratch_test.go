package scratch

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"berth/internal/spec/vnode"
	"berth/internal/sys/lock"
	"berth/internal/sys/quota"
	"berth/internal/sys/refuse"
	"berth/test/loop"
	"berth/test/testkit"
)

// disk mounts a new file system of 64 MiB, or of 400 MiB for XFS, and returns its folder.
func disk(t *testing.T, options string, mkfs ...string) string {
	t.Helper()
	testkit.NeedsRoot(t)
	if _, err := exec.LookPath(mkfs[0]); err != nil {
		t.Skip("needs ", mkfs[0])
	}
	size, fs := int64(64<<20), "ext4"
	if mkfs[0] == "mkfs.xfs" {
		size, fs = 400<<20, "xfs"
	}
	dev := loop.ForTest(t, size)
	if out, err := exec.Command(mkfs[0], append(mkfs[1:], "-q", dev)...).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	dir, err := os.MkdirTemp("/var/lib", "berth-scratch-test-") // below folders that only root can change
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.Remove(dir) })
	if err := unix.Mount(dev, dir, fs, 0, options); errors.Is(err, unix.EINVAL) && options != "" {
		t.Skipf("no project quota in this kernel: it does not mount with %q (CONFIG_QFMT_V2, CONFIG_XFS_QUOTA): %v", options, err)
	} else if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, 0); err != nil {
			t.Errorf("unmount %s: %v", dir, err)
		}
	})
	return dir
}

// pool makes a pool of a folder.
func pool(t *testing.T, dir string) (Pools, Pool) {
	t.Helper()
	s := Pools{filepath.Join(t.TempDir(), "pools")}
	p, err := s.Add(t.Context(), Pool{Name: "p", Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	return s, p
}

// volume is a volume of a node with ids of its own.
func volume(t *testing.T, s Pools, v vnode.Scratch) *Volume {
	t.Helper()
	v.Pool = "p"
	n := &vnode.Node{Name: "n", Scratch: []vnode.Scratch{v}}
	src, err := s.Look(n)
	if err != nil {
		t.Fatal(err)
	}
	step := s.Claims(n, src)[0].(*Volume)
	step.Own(1<<30, 65536)
	return step
}

func made(t *testing.T, v *Volume) error {
	t.Helper()
	return errors.Join(v.Do(t.Context()), v.Verify(t.Context()))
}

// empty fails unless the pool holds nothing.
func empty(t *testing.T, p Pool) {
	t.Helper()
	entries, err := os.ReadDir(p.own())
	if err != nil || len(entries) > 0 {
		t.Errorf("in the pool's folder: %v, %v", entries, err)
	}
}

// TestFolderOfAll: a pool is in a folder that root alone can change, and stays there.
func TestFolderOfAll(t *testing.T) {
	dir := disk(t, "", "mkfs.ext4", "-F")
	_, p := pool(t, dir)
	if err := os.Chmod(dir, 0o777|os.ModeSticky); err != nil {
		t.Fatal(err)
	}
	if _, err := checkFolder(Pool{Name: "q", Dir: dir}); refuse.KindOf(err) != refuse.Invalid {
		t.Errorf("a folder of all: %v", err)
	}
	for what, spoil := range map[string]func() error{
		"others may enter it": func() error { return os.Chmod(p.own(), 0o755) },
		"another user's":      func() error { return os.Chown(p.own(), 1000, 0) },
	} {
		if err := errors.Join(os.Chown(p.own(), 0, 0), os.Chmod(p.own(), 0o700), p.there(), spoil()); err != nil {
			t.Fatal(err)
		}
		if err := p.there(); refuse.KindOf(err) != refuse.Cannot {
			t.Errorf("%s: %v", what, err)
		}
	}
}

// TestMountedOnce: while something has the volume's file system open, its file gets no second loop device.
func TestMountedOnce(t *testing.T) {
	dir := disk(t, "", "mkfs.ext4", "-F")
	s, _ := pool(t, dir)
	v := volume(t, s, vnode.Scratch{Target: "/tmp", Size: 20 << 20})
	if err := made(t, v); err != nil {
		t.Fatal(err)
	}
	first, err := v.open()
	if err != nil {
		t.Fatal(err)
	}
	second, err := v.open()
	if refuse.KindOf(err) != refuse.Busy {
		t.Errorf("mounted twice: %v", err)
	}
	if err == nil {
		second.Close()
	}
	fds, err := filepath.Glob("/proc/self/fd/*")
	if err != nil {
		t.Fatal(err)
	}
	for _, fd := range fds {
		if to, err := os.Readlink(fd); err == nil && to == v.Path() {
			t.Errorf("an open that was refused keeps %s open: the pool cannot be unmounted", to)
		}
	}
	first.Close()
	again, err := v.open()
	if err != nil {
		t.Fatal(err)
	}
	again.Close()
	if err := v.Undo(t.Context()); err != nil {
		t.Error(err)
	}
}

// TestFile makes volumes in files: they have what was asked for, and a pool that is full or too small refuses them.
func TestFile(t *testing.T) {
	dir := disk(t, "", "mkfs.ext4", "-F")
	s, p := pool(t, dir)
	if p.Quota {
		t.Fatal("a file system without quotas is said to have them")
	}
	v := volume(t, s, vnode.Scratch{Target: "/tmp", Size: 20 << 20, Mode: "0750"})
	if err := errors.Join(v.Prepare(t.Context()), made(t, v)); err != nil {
		t.Fatal(err)
	}
	root, err := v.open()
	if err != nil {
		t.Fatal(err)
	}
	fd, err := unix.Openat(int(root.Fd()), ".", unix.O_DIRECTORY, 0)
	if err != nil {
		t.Fatal(err)
	}
	inside := os.NewFile(uintptr(fd), "volume")
	names, err := inside.Readdirnames(-1)
	inside.Close()
	root.Close()
	if err != nil || len(names) > 0 {
		t.Errorf("a new volume holds %v, %v", names, err)
	}
	for what, f := range map[string]func(context.Context) error{"prepare": v.Prepare, "do": v.Do} {
		if err := f(t.Context()); refuse.KindOf(err) != refuse.Busy {
			t.Errorf("made twice, %s: %v", what, err)
		}
	}
	large := volume(t, s, vnode.Scratch{Target: "/large", Size: 1 << 30})
	if err := large.Prepare(t.Context()); refuse.KindOf(err) != refuse.Cannot || !strings.Contains(err.Error(), "is larger than scratch pool p") {
		t.Errorf("too large: %v", err)
	}
	full := volume(t, s, vnode.Scratch{Target: "/full", Size: 40 << 20})
	for i, f := range []func(context.Context) error{full.Prepare, full.Do} {
		if err := f(t.Context()); refuse.KindOf(err) != refuse.Cannot || !strings.Contains(err.Error(), "scratch pool p is full") {
			t.Errorf("full, call %d: %v", i, err)
		}
	}
	if err := full.Undo(t.Context()); err != nil {
		t.Error(err)
	}
	listed, err := s.List(t.Context())
	if err != nil || len(listed) != 1 || len(listed[0].Volumes) != 1 || listed[0].Volumes[0].Node != "n" || listed[0].Size < 50<<20 {
		t.Errorf("listed: %+v, %v", listed, err)
	}
	if err := s.Remove(t.Context(), "p", nil); refuse.KindOf(err) != refuse.Busy {
		t.Errorf("a pool with a volume removed: %v", err)
	}
	for range 2 {
		if err := v.Undo(t.Context()); err != nil {
			t.Error(err)
		}
	}
	empty(t, p)
	if err := s.Remove(t.Context(), "p", []*vnode.Node{{Name: "u", Scratch: []vnode.Scratch{{Pool: "p"}}}}); refuse.KindOf(err) != refuse.Busy {
		t.Errorf("a pool that a node names removed: %v", err)
	}
	if err := s.Remove(t.Context(), "p", nil); err != nil {
		t.Error(err)
	}
	if _, err := os.Lstat(p.own()); err == nil {
		t.Error("the pool's folder is still there")
	}
}

// TestQuota makes a volume as a folder with a quota, and leaves no limit behind, wherever its undo begins.
func TestQuota(t *testing.T) {
	for name, c := range map[string]struct {
		mkfs []string
		opts string
	}{
		"ext4": {[]string{"mkfs.ext4", "-F", "-O", "quota,project", "-E", "quotatype=prjquota"}, "prjquota"},
		"xfs":  {[]string{"mkfs.xfs"}, "pquota"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := disk(t, c.opts, c.mkfs...)
			if ok, why := quota.Support(dir); !ok {
				t.Skipf("this kernel's %s has no project quotas: %s", name, why)
			}
			s, p := pool(t, dir)
			v := volume(t, s, vnode.Scratch{Target: "/tmp", Size: 8 << 20})
			if !p.Quota || v.FS != "" {
				t.Fatalf("pool %+v, file system %q", p, v.FS)
			}
			if err := made(t, v); err != nil {
				t.Fatal(err)
			}
			if err := (&Open{Volumes: []*Volume{v}}).Verify(t.Context()); err != nil {
				t.Error(err)
			}
			f, err := os.Open(v.Path())
			if err != nil {
				t.Fatal(err)
			}
			project, _, err := quota.Project(f)
			f.Close()
			if err != nil || project < 1<<30 {
				t.Fatalf("project %d, %v", project, err)
			}
			other := volume(t, s, vnode.Scratch{Target: "/own", Size: 320 << 20, FS: "xfs"})
			if other.FS != "xfs" || !strings.HasPrefix(other.String(), "file ") {
				t.Errorf("with fs: %s", other)
			}
			if err := os.MkdirAll(filepath.Join(v.Path(), strings.Repeat("d/", 2000)), 0o700); err != nil {
				t.Fatal(err)
			}
			if err := v.Undo(t.Context()); err != nil {
				t.Fatal(err)
			}
			empty(t, p)
			top, err := os.Open(dir)
			if err != nil {
				t.Fatal(err)
			}
			defer top.Close()
			if limit, used, err := quota.Use(top, project); limit != 0 || used != 0 || err != nil {
				t.Errorf("after the undo: limit %d, used %d, %v", limit, used, err)
			}
			if err := os.Mkdir(v.Path()+gone, 0o700); err != nil { // an undo that was killed
				t.Fatal(err)
			}
			if err := v.Undo(t.Context()); err != nil {
				t.Fatal(err)
			}
			empty(t, p)
		})
	}
}

// TestSweep removes what no node has, and nothing else.
func TestSweep(t *testing.T) {
	s, p := pool(t, disk(t, "", "mkfs.ext4", "-F"))
	for _, name := range []string{"n.00000001", "n.00000002", "gone.00000001", "gone.0000000x", "lost+found", "gone.00000003" + gone} {
		if err := os.WriteFile(p.inFolder(name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	hold := func(_ context.Context, node string, f func(func(pool, name string) bool) error) error {
		return f(func(pool, name string) bool { return node == "n" && pool == p.ID && name == "n.00000001" })
	}
	did, err := s.Sweep(t.Context(), hold)
	if err != nil || len(did) != 3 {
		t.Errorf("did %q, %v", did, err)
	}
	entries, err := os.ReadDir(p.own())
	if got := fmt.Sprint(entries); err != nil || got != "[- gone.0000000x - lost+found - n.00000001]" {
		t.Errorf("left: %s, %v", got, err)
	}
}

// TestPoolOfFolder checks which folders can be a pool.
func TestPoolOfFolder(t *testing.T) {
	dir := disk(t, "", "mkfs.ext4", "-F")
	s := Pools{filepath.Join(t.TempDir(), "pools")}
	path := func(name string) string { return filepath.Join(dir, name) }
	err := errors.Join(os.Mkdir(path("open"), 0), os.Chmod(path("open"), 0o777), os.Mkdir(path("open/below"), 0o700), os.WriteFile(path("file"), nil, 0o600),
		os.Mkdir(path("good"), 0o700), os.Symlink("good", path("link")))
	if err != nil {
		t.Fatal(err)
	}
	wants := map[string]refuse.Kind{"open": refuse.Invalid, "open/below": refuse.Invalid, "file": refuse.Invalid, "none": refuse.NotFound, "link": 0}
	for _, name := range []string{"open", "open/below", "file", "none", "link"} {
		want := wants[name]
		p, err := s.Add(t.Context(), Pool{Name: "p", Dir: path(name)})
		if refuse.KindOf(err) != want {
			t.Errorf("%s: %v", name, err)
		}
		if err == nil && p.Dir != path("good") {
			t.Errorf("%s leads to %s", name, p.Dir)
		}
	}
	if _, err := s.Add(t.Context(), Pool{Name: "p", Memory: true}); refuse.KindOf(err) != refuse.Busy {
		t.Errorf("a second pool of that name: %v", err)
	}
	p, err := s.Get("p")
	if err != nil {
		t.Fatal(err)
	}
	v := volume(t, s, vnode.Scratch{Target: "/tmp", Size: 2 << 20})
	if err := os.Remove(p.own()); err != nil { // as if its file system was not mounted
		t.Fatal(err)
	}
	for what, f := range map[string]func(context.Context) error{"prepare": v.Prepare, "do": v.Do} {
		if err := f(t.Context()); refuse.KindOf(err) != refuse.Cannot || !strings.Contains(err.Error(), "is not there") {
			t.Errorf("without its folder, %s: %v", what, err)
		}
	}
	if err := v.Undo(t.Context()); err != nil {
		t.Error(err)
	}
}

// TestRecords checks that a record that is not a pool's is refused.
func TestRecords(t *testing.T) {
	s := Pools{t.TempDir()}
	for text, want := range map[string]string{
		``:                          "it is empty",
		`{"name": "p", "id": "0000`: "it ends in the middle",
		`{"name": "p", "id": "00000000", "memory": true, "x": 1}`:     "cannot be read",
		`{"name": "q", "id": "00000000", "memory": true}`:             "not a pool's record",
		`{"name": "p", "id": "0000", "memory": true}`:                 "not a pool's record",
		`{"name": "p", "id": "00000000"}`:                             "not a pool's record",
		`{"name": "p", "id": "00000000", "memory": true, "vg": "v"}`:  "not a pool's record",
		`{"name": "p", "id": "00000000", "dir": "/a/../b"}`:           "not a pool's record",
		`{"name": "p", "id": "00000000", "dir": "/a", "thin": "t"}`:   "not a pool's record",
		`{"name": "p", "id": "00000000", "vg": "v", "thin": "t"}`:     "",
		`{"name": "p", "id": "00000000", "dir": "/a", "quota": true}`: "",
	} {
		if err := os.WriteFile(s.path("p"), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := s.Get("p"); want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%s: %v", text, err)
		}
	}
	for _, name := range []string{"../p", "P", ""} {
		if _, err := s.Get(name); refuse.KindOf(err) != refuse.Invalid {
			t.Errorf("pool %q: %v", name, err)
		}
	}
}

// TestProgramHoldsLock checks that a program keeps the pool's lock when the process that started it is gone.
func TestProgramHoldsLock(t *testing.T) {
	s := Pools{t.TempDir()}
	if _, err := s.Add(t.Context(), Pool{Name: "p", Memory: true}); err != nil {
		t.Fatal(err)
	}
	_, held, err := s.hold(t.Context(), "p")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := run(held, "/bin/sh", "-c", "exec 3<&0; sleep 1000 >/dev/null 2>&1 & echo $! >&2; exit 3"); err == nil {
		t.Fatal("no error of a program that failed")
	} else if held.Close(); !strings.Contains(err.Error(), "sh: ") {
		t.Error(err)
	} else {
		_, f, openErr := s.open("p")
		if openErr != nil {
			t.Fatal(openErr)
		}
		if got, _ := lock.Try(f); got {
			t.Error("the program that is still at work does not hold the lock")
		}
		f.Close()
		if out, killErr := exec.Command("kill", strings.TrimPrefix(err.Error(), "sh: ")).CombinedOutput(); killErr != nil {
			t.Fatal(killErr, string(out))
		}
	}
	f, err := s.holdIfThere(t.Context(), "p")
	if err != nil {
		t.Fatal(err)
	}
	f.Close()
}

func TestMapped(t *testing.T) {
	if got := mapped("vg-0", "berth-00-n.1"); got != "/dev/mapper/vg--0-berth--00--n.1" {
		t.Error(got)
	}
	for name, node := range map[string]string{"a-b.01234567": "a-b", "a.b.01234567": "", "a.0123456": "", ".01234567": ""} {
		if got, ok := (Pool{Dir: "/x"}).nodeOf(name); ok != (node != "") || ok && got != node {
			t.Errorf("%s: %q, %v", name, got, ok)
		}
	}
}
