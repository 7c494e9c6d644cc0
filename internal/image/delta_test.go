package image

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"berth/internal/spec/vnode"
	"berth/internal/sys/purge"
	"berth/internal/sys/quota"
	"berth/internal/sys/refuse"
	"berth/test/testkit"
)

func TestDelta(t *testing.T) {
	testkit.NeedsRoot(t)
	d := &Delta{Path: filepath.Join(t.TempDir(), "delta"), Owner: 1 << 30}
	if err := d.Undo(t.Context()); err != nil {
		t.Errorf("undo of nothing: %v", err)
	}
	if err := errors.Join(d.Do(t.Context()), d.Verify(t.Context())); err != nil {
		t.Fatal(err)
	}
	want := []string{"drwxr-xr-x 1073741824:1073741824 upper", "drwxr-xr-x 1073741824:1073741824 work"}
	if diff := cmp.Diff(want, listing(t, d.Path)); diff != "" {
		t.Error(diff)
	}
	if err := d.Do(t.Context()); refuse.KindOf(err) != refuse.Busy {
		t.Errorf("again: %v", err)
	}
	// An earlier Undo was killed after its rename, and a new delta was made since.
	if err := os.MkdirAll(filepath.Join(d.gone(), "x/y"), 0o755); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := d.Undo(t.Context()); err != nil {
			t.Error(err)
		}
	}
	if left := listing(t, filepath.Dir(d.Path)); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
}

func TestDeltaMemorySize(t *testing.T) {
	for _, c := range []struct{ size, mem, want vnode.Bytes }{{5, 100, 5}, {0, 100, 50}, {0, 0, 0}} {
		if got := MemorySize(vnode.Delta{Size: c.size, In: vnode.InMemory}, vnode.Memory{Max: c.mem}); got != c.want {
			t.Errorf("%+v: %d", c, got)
		}
	}
}

func TestLimitedDeltaIsRefusedWithoutQuotas(t *testing.T) {
	testkit.NeedsRoot(t)
	dir := t.TempDir()
	if ok, _ := quota.Support(dir); ok {
		t.Skipf("%s has project quotas", dir)
	}
	limited := vnode.Delta{Size: 1 << 20}
	if err := CheckDelta(ReadLackOfQuota(limited, filepath.Join(dir, "not/there/yet"))); refuse.KindOf(err) != refuse.Cannot || !strings.Contains(err.Error(), "memory") {
		t.Errorf("got %v", err)
	}
	for _, d := range []vnode.Delta{{}, {Size: 1, In: vnode.InMemory}} {
		if lack := ReadLackOfQuota(d, dir); lack != "" {
			t.Errorf("%+v: %s", d, lack)
		}
	}
	d := &Delta{Path: filepath.Join(dir, "delta"), Size: limited.Size, Project: 7}
	if err := d.Do(t.Context()); refuse.KindOf(err) != refuse.Cannot {
		t.Errorf("got %v", err)
	}
	if err := d.Undo(t.Context()); err != nil {
		t.Error(err)
	}
}

// TestDeltaQuota checks the limit on newly made file systems.
func TestDeltaQuota(t *testing.T) {
	testkit.NeedsRoot(t)
	for name, c := range map[string]struct {
		make []string
		opts string
	}{
		"ext4": {[]string{"mkfs.ext4", "-q", "-O", "quota,project", "-E", "quotatype=prjquota"}, "prjquota"},
		"xfs":  {[]string{"mkfs.xfs", "-q"}, "pquota"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := loopMount(t, c.make, c.opts)
			if ok, why := quota.Support(dir); !ok {
				t.Skipf("this kernel's %s has no project quotas: %s", name, why)
			}
			d := &Delta{Path: filepath.Join(dir, "n/delta"), Owner: 1 << 30, Size: 8 << 20, Project: 1 << 30}
			if err := os.Mkdir(filepath.Dir(d.Path), 0o700); err != nil {
				t.Fatal(err)
			}
			if err := errors.Join(d.Do(t.Context()), d.Verify(t.Context())); err != nil {
				t.Fatal(err)
			}
			if n := fillAs(t, int(d.Owner), filepath.Join(d.Upper(), "f"), 16<<20); n > 8<<20 || n < 7<<20 {
				t.Errorf("%d bytes went into a delta of 8 MiB", n)
			}
			if err := d.Undo(t.Context()); err != nil {
				t.Fatal(err)
			}
			f, err := os.Open(dir)
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			if limit, used, err := quota.Use(f, d.Project); limit != 0 || used != 0 || err != nil {
				t.Errorf("after the purge: limit %d, used %d, %v", limit, used, err)
			}
		})
	}
}

// TestProjectIsInherited needs a file system with project ids, but no quotas.
func TestProjectIsInherited(t *testing.T) {
	testkit.NeedsRoot(t)
	dir := loopMount(t, []string{"mkfs.xfs", "-q"}, "")
	f, err := os.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := quota.SetProject(f, 1<<30); err != nil {
		t.Fatal(err)
	}
	sub := filepath.Join(dir, "sub")
	if err := os.Mkdir(sub, 0o700); err != nil {
		t.Fatal(err)
	}
	s, err := os.Open(sub)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if id, inherits, err := quota.Project(s); id != 1<<30 || !inherits || err != nil {
		t.Errorf("project %d, inherited %v, %v", id, inherits, err)
	}
	if ok, why := quota.Support(dir); ok || !strings.Contains(why, "off") {
		t.Errorf("quotas: %v, %q", ok, why)
	}
}

// loopMount makes a file system in a file and mounts it. It skips the test if this machine cannot.
func loopMount(t *testing.T, mkfs []string, opts string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "disk")
	if err := errors.Join(os.WriteFile(file, nil, 0o600), os.Truncate(file, 320<<20)); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command(mkfs[0], append(mkfs[1:], file)...).CombinedOutput(); err != nil {
		t.Skipf("%v: %v %s", mkfs, err, out)
	}
	dir := t.TempDir()
	args := []string{"-o", strings.TrimSuffix("loop,"+opts, ","), file, dir}
	if out, err := exec.Command("mount", args...).CombinedOutput(); err != nil {
		t.Skipf("no project quota in this kernel: it does not mount with %q (CONFIG_QFMT_V2, CONFIG_XFS_QUOTA, loop devices): %v %s", opts, err, bytes.TrimSpace(out))
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, 0); err != nil {
			t.Error(err)
		}
	})
	return dir
}

// fillAs writes as a user without the right to exceed quotas, and returns the size that the file reached.
func fillAs(t *testing.T, uid int, file string, n int) int64 {
	t.Helper()
	if err := errors.Join(os.WriteFile(file, nil, 0o600), os.Chown(file, uid, uid)); err != nil {
		t.Fatal(err)
	}
	in, err := os.OpenFile(file, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	cmd := exec.Command("head", "-c", fmt.Sprint(n), "/dev/zero")
	cmd.Stdout = in
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uint32(uid), Gid: uint32(uid)}}
	_ = cmd.Run() // it ends when the quota is full
	if err := in.Sync(); err != nil {
		t.Log(err)
	}
	info, err := in.Stat()
	if err != nil {
		t.Fatal(err)
	}
	return info.Size()
}

func TestRemoveTree(t *testing.T) {
	dir := t.TempDir()
	top := filepath.Join(dir, "tree")
	keep := filepath.Join(dir, "keep")
	if err := errors.Join(os.Mkdir(keep, 0o700), os.WriteFile(filepath.Join(keep, "f"), nil, 0o600), os.MkdirAll(filepath.Join(top, ".berth-1"), 0o700)); err != nil {
		t.Fatal(err)
	}
	// Deeper than PATH_MAX and the limit of open files allow; a node can make such a tree.
	fd, err := unix.Open(top, unix.O_DIRECTORY, 0)
	if err != nil {
		t.Fatal(err)
	}
	for range 30_000 {
		if err := unix.Mkdirat(fd, "d", 0o700); err != nil {
			t.Fatal(err)
		}
		next, err := unix.Openat(fd, "d", unix.O_DIRECTORY, 0)
		unix.Close(fd)
		if err != nil {
			t.Fatal(err)
		}
		fd = next
	}
	if err := unix.Symlinkat(keep, fd, "link"); err != nil {
		t.Fatal(err)
	}
	unix.Close(fd)
	for i := range 3000 { // more entries than one read of a folder returns
		if err := os.MkdirAll(filepath.Join(top, ".berth-1", fmt.Sprint(i), "x"), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink(keep, filepath.Join(top, "link")); err != nil {
		t.Fatal(err)
	}
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	if err := purge.Tree(gone, top); !isContext(err) {
		t.Errorf("cancelled: %v", err)
	}
	for range 2 {
		if err := purge.Tree(t.Context(), top); err != nil {
			t.Error(err)
		}
	}
	if diff := cmp.Diff([]string{"d--------- keep"}, listingTop(t, dir)); diff != "" {
		t.Error(diff)
	}
	if _, err := os.Stat(filepath.Join(keep, "f")); err != nil {
		t.Error(err)
	}
}

func TestSkeleton(t *testing.T) {
	testkit.NeedsRoot(t)
	host := t.TempDir()
	err := errors.Join(os.Symlink("usr/bin", filepath.Join(host, "bin")), os.Mkdir(filepath.Join(host, "lib"), 0o755),
		os.Mkdir(filepath.Join(host, "etc"), 0o755), os.Mkdir(filepath.Join(host, "usr"), 0o755))
	if err != nil {
		t.Fatal(err)
	}
	h, err := ReadHostRoot(host)
	if err != nil {
		t.Fatal(err)
	}
	want := []Bind{{"/usr", "/usr", true}, {"/lib", "/lib", true}, {"/etc", "/etc", true}}
	if diff := cmp.Diff(want, h.Binds()); diff != "" {
		t.Error(diff)
	}
	s := h.Skeleton(filepath.Join(t.TempDir(), "root"), 99)
	if err := errors.Join(s.Do(t.Context()), s.Verify(t.Context())); err != nil {
		t.Fatal(err)
	}
	got := strings.Join(listing(t, s.Path), "\n") + "\n"
	for _, line := range []string{
		"Lrwxrwxrwx 99:99 bin -> usr/bin\n", "drwxr-xr-x 99:99 lib\n", "drwxr-xr-x 99:99 usr\n", "drwx------ 99:99 root\n",
		"dtrwxrwxrwx 99:99 tmp\n", "dtrwxrwxrwx 99:99 var/tmp\n", "Lrwxrwxrwx 99:99 var/run -> ../run\n", "drwxr-xr-x 99:99 proc\n",
	} {
		if !strings.Contains(got, line) {
			t.Errorf("no %q in\n%s", line, got)
		}
	}
	if err := s.Do(t.Context()); refuse.KindOf(err) != refuse.Busy {
		t.Errorf("again: %v", err)
	}
	for range 2 {
		if err := s.Undo(t.Context()); err != nil {
			t.Error(err)
		}
	}
	if _, err := os.Lstat(s.Path); !errors.Is(err, os.ErrNotExist) {
		t.Error(err)
	}
}

func TestCheckHost(t *testing.T) {
	no := false
	for name, c := range map[string]struct {
		node vnode.Node
		kind refuse.Kind
	}{
		"host":               {vnode.Node{Image: vnode.Image{Kind: vnode.HostImage}, Command: []string{"sh"}}, 0},
		"host as host root":  {vnode.Node{Image: vnode.Image{Kind: vnode.HostImage}, Command: []string{"sh"}, UserNamespace: &no}, refuse.Invalid},
		"host, no command":   {vnode.Node{Image: vnode.Image{Kind: vnode.HostImage}}, refuse.Invalid},
		"other as host root": {vnode.Node{Image: vnode.Image{Kind: vnode.DirImage}, UserNamespace: &no}, 0},
	} {
		if err := CheckHost(&c.node); refuse.KindOf(err) != c.kind {
			t.Errorf("%s: %v", name, err)
		}
	}
}
