package gatewaytest

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"berth/internal/spec/vnode"
	"berth/internal/storage/gateway"
	"berth/internal/sys/thread"
)

// behaviours are what programs expect of a file system. A script prints want, or other with the deviation.
var behaviours = []struct {
	name, script, want string
	unless             gateway.Deviation
	other              string
}{
	{name: "rename over a file", script: `echo a >a; echo b >b; mv -f a b; cat b; test -e a || echo gone`, want: "a\ngone"},
	{name: "rename of an open file", script: `exec 3>o; mv o p; echo x >&3; exec 3>&-; cat p`, want: "x"},
	{name: "rename of a folder", script: `mkdir -p d/e; echo f >d/e/f; mv d g; cat g/e/f`, want: "f"},
	{name: "remove an open file", script: `echo u >u; exec 3<u; rm u; cat <&3; test -e u || echo gone`, want: "u\ngone"},
	{name: "remove a folder that has files", script: `mkdir d; echo f >d/f; rmdir d 2>&1 | grep -o 'not empty' || echo other`, want: "not empty"},
	{name: "append", script: `echo 1 >l; echo 2 >>l; cat l`, want: "1\n2"},
	{name: "truncate", script: `echo 12345 >t; truncate -s 2 t; stat -c %s t; truncate -s 1000000 t; stat -c %s t; cat t | wc -c`, want: "2\n1000000\n1000000"},
	{name: "modes", script: `umask 027; echo m >m; stat -c %a m; chmod 4755 m; chmod 600 m; stat -c %a m; mkdir md; stat -c %a md`, want: "640\n600\n750"},
	{name: "times", script: `touch -d '2001-02-03 04:05:06 UTC' w; stat -c %Y w`, want: "981173106"},
	{name: "links", script: `echo s >s; ln -s s sl; readlink sl; cat sl; ln -s ../nowhere up2; readlink up2`, want: "s\ns\n../nowhere"},
	{name: "hard links", script: `echo h >h; ln h h2; cat h2; stat -c %h h2`, want: "h\n2", unless: gateway.OneLink, other: "h\n1"},
	{name: "FIFO", script: `mkfifo f 2>/dev/null && echo made || echo none`, want: "made", unless: gateway.NoSpecial, other: "none"},
	{name: "locks within the node", script: `exec 3>k; flock 3; flock -n k true && echo mine || echo taken`, want: "taken"},
	{
		name:   "another user of the node",
		script: `echo p >p; chmod 600 p; chmod 755 .; setpriv --reuid 1500 --regid 1500 --clear-groups sh -c 'cat p 2>/dev/null || echo closed; echo x 2>/dev/null >q || echo no new file; cat file'`,
		want:   "closed\nno new file\ndata",
	},
	{name: "sync", script: `echo y >y; sync y; sync -f .; cat y`, want: "y"},
	{name: "free space", script: `df --output=avail . | tail -1 | grep -c '[1-9]'`, want: "1"},
}

// posix checks what programs expect, in one node.
func (s Suite) posix(t *testing.T) {
	b := s.bed(t, s.Source(t), vnode.Mount{})
	n, err := b.start()
	if err != nil {
		t.Fatal(err)
	}
	for i, c := range behaviours {
		want := c.want
		if c.unless != "" && s.deviates(c.unless) {
			want = c.other
		}
		out, err := n.Run(fmt.Sprintf("cp file %d.file; mkdir %d; mv %d.file %d/file; cd %d\n%s", i, i, i, i, i, c.script))
		if got := strings.TrimSpace(out); err != nil || got != want {
			t.Errorf("%s: %q, %v; want %q", c.name, got, err, want)
		}
	}
	n.Kill()
	b.end()
}

// fullDisk: a writer is told that the source is full, and the mount works on.
func (s Suite) fullDisk(t *testing.T) {
	if s.Small == nil {
		return
	}
	want := "No space left on device"
	if s.deviates(gateway.NoSpaceErr) {
		want = "Input/output error"
	}
	got, err := s.inside(t, s.Small(t), vnode.Mount{}, `dd if=/dev/zero of=big bs=64k count=256 2>&1 | grep -o '`+want+`' | head -1; rm big
for i in $(seq 50); do [ $(df --output=avail . | tail -1) -gt 100 ] && break; sleep 0.2; done # a file server gives room back a moment later
echo after >after; cat after`)
	if err != nil || got != want+"\nafter" {
		t.Errorf("got %q, %v; want %q", got, err, want)
	}
}

// manyFiles makes and lists many files, removes some, and writes one by a shared mapping. It works on the node's mount from outside.
func (s Suite) manyFiles(t *testing.T) {
	files := cmp.Or(s.Files, 20000)
	source := s.Source(t)
	b := s.bed(t, source, vnode.Mount{})
	n, err := b.start()
	if err != nil {
		t.Fatal(err)
	}
	at := b.at()
	dir, root := b.open()
	if err := as(root, func() error { return mapped(dir) }); err != nil {
		t.Errorf("write by a shared mapping: %v", err)
	}
	if text, err := os.ReadFile(at + "/mapped"); err != nil || string(text) != "mapped" {
		t.Errorf("written by a mapping: %q, %v", text, err)
	}
	if err := as(root, func() error { return unix.Mkdirat(dir, "many", 0o755) }); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	each(t, root, files, func(i int) error {
		fd, err := unix.Openat(dir, "many/"+strconv.Itoa(i), unix.O_CREAT|unix.O_EXCL|unix.O_WRONLY|unix.O_CLOEXEC, 0o644)
		if err != nil {
			return err
		}
		return unix.Close(fd)
	})
	made := time.Since(began)
	if all, err := os.ReadDir(at + "/many"); err != nil || len(all) != files {
		t.Errorf("the source has %d files, %v", len(all), err)
	}
	began = time.Now()
	if out, err := n.Run("ls -U many | wc -l"); err != nil || strings.TrimSpace(out) != strconv.Itoa(files) {
		t.Errorf("the node sees %q files, %v", out, err)
	}
	listed := time.Since(began)
	began = time.Now()
	each(t, root, files/10, func(i int) error { return unix.Unlinkat(dir, "many/"+strconv.Itoa(i), 0) })
	t.Logf("%d files: made in %.1f s, listed in the node in %.1f s, a tenth removed in %.1f s", files, made.Seconds(), listed.Seconds(), time.Since(began).Seconds())
	if all, err := os.ReadDir(at + "/many"); err != nil || len(all) != files-files/10 {
		t.Errorf("after a tenth was removed the source has %d files, %v", len(all), err)
	}
	unix.Close(dir)
	n.Kill()
	b.end()
}

// at is where the source's files are on the host while the node has them.
func (b *bed) at() string {
	if b.way.Stage != nil {
		return b.way.Stage.Source
	}
	return b.source.Dir
}

// as calls f with the file system ids of a user.
func as(id int, f func() error) error {
	return thread.Own(func() error {
		if err := errors.Join(unix.Setfsgid(id), unix.Setfsuid(id)); err != nil {
			return err
		}
		return f()
	})
}

// each calls f for each file, some at a time, with the file system ids of a user.
func each(t *testing.T, id, files int, f func(i int) error) {
	t.Helper()
	const workers = 8
	var all sync.WaitGroup
	errs := make([]error, workers)
	for w := range workers {
		all.Go(func() {
			errs[w] = as(id, func() error {
				for i := w; i < files; i += workers {
					if err := f(i); err != nil {
						return err
					}
				}
				return nil
			})
		})
	}
	all.Wait()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
}

// open opens the mount's folder in the node. It also returns the host's id of the node's root.
func (b *bed) open() (dir, root int) {
	b.t.Helper()
	pid, err := os.ReadFile(b.to.Layout.Node(b.to.Name).PIDFile())
	if err != nil {
		b.t.Fatal(err)
	}
	ids, err := os.ReadFile("/proc/" + strings.TrimSpace(string(pid)) + "/uid_map")
	if err != nil {
		b.t.Fatal(err)
	}
	if _, err := fmt.Sscan(string(ids), new(int), &root); err != nil {
		b.t.Fatal(err)
	}
	ns, err := os.Open("/proc/" + strings.TrimSpace(string(pid)) + "/ns/mnt")
	if err != nil {
		b.t.Fatal(err)
	}
	defer ns.Close()
	err = thread.Own(func() error {
		if err := errors.Join(unix.Unshare(unix.CLONE_FS), unix.Setns(int(ns.Fd()), unix.CLONE_NEWNS)); err != nil {
			return err
		}
		dir, err = unix.Open(b.mount.Target, unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		return err
	})
	if err != nil {
		b.t.Fatal(err)
	}
	return dir, root
}

// mapped writes a file by a shared mapping.
func mapped(dir int) error {
	fd, err := unix.Openat(dir, "mapped", unix.O_CREAT|unix.O_RDWR|unix.O_CLOEXEC, 0o644)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	if err := unix.Ftruncate(fd, 6); err != nil {
		return err
	}
	at, err := unix.Mmap(fd, 0, 6, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return err
	}
	copy(at, "mapped")
	return errors.Join(unix.Msync(at, unix.MS_SYNC), unix.Munmap(at), unix.Fsync(fd))
}
