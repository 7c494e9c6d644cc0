package machine

import (
	"bufio"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"berth/internal/runner"
	"berth/internal/runner/machine/wire"
	"berth/internal/storage/mounts"
	"berth/internal/storage/packed"
	"berth/internal/sys/fork"
	"berth/internal/sys/refuse"
	"berth/test/testkit"
)

// TestShareDaemonVersions: each virtiofsd gets words that it knows, always with its sandbox and its filter.
func TestShareDaemonVersions(t *testing.T) {
	for said, want := range map[string]ShareDaemon{
		"virtiofsd version 7.2.22 (Debian 1:7.2+dfsg-7+deb12u18+b3)\nusing FUSE kernel interface version 7.36\n": {Version: "7.2", Legacy: true},
		"virtiofsd 1.13.2\n": {Version: "1.13", MMap: true},
		"virtiofsd 1.10.0\n": {Version: "1.10"},
		"virtiofsd 2.0.0\n":  {Version: "2.0", MMap: true},
	} {
		d := ShareDaemon{}
		if err := d.understand(said); err != nil || d != want {
			t.Errorf("%q is %+v, want %+v: %v", said, d, want, err)
		}
		args := strings.Join(d.arguments("/shares/0", 3, 1000), " ")
		for _, w := range []string{"--fd=3", "--rlimit-nofile=1000", "sandbox=namespace", "/shares/0", "modcaps=-mknod:-setfcap"} {
			if !strings.Contains(args, w) {
				t.Errorf("%q is started without %s: %s", said, w, args)
			}
		}
		if !d.Legacy && !strings.Contains(args, "--seccomp=kill") { // QEMU's own knows nothing else
			t.Errorf("%q is started without its filter: %s", said, args)
		}
		if strings.Contains(args, "allow-mmap") != d.MMap {
			t.Errorf("%q: %s", said, args)
		}
	}
	for _, said := range []string{
		"", "virtiofsd backend version 0.9", "virtiofsd -1", "virtiofsd -1.5", "virtiofsd 2.-5", "qemu 7.2", "virtiofsd version",
		"virtiofsd version 5.2.0 (Debian 1:5.2+dfsg-11)", "virtiofsd version 6.2.0", "virtiofsd 1.9.9", "virtiofsd 0.9.1",
	} {
		if err := (&ShareDaemon{}).understand(said); refuse.KindOf(err) != refuse.Cannot {
			t.Errorf("%q: %v", said, err)
		}
	}
}

// TestShares: the guest mounts each folder after what it lies in; QEMU shares the guest's memory only where a daemon needs it.
func TestShares(t *testing.T) {
	s := &runner.Spec{
		Node: "m", Content: mounts.Plan{IDs: mounts.IDs{Base: 1 << 30, Size: 65536}, Root: mounts.Root{Packed: &packed.File{Path: "/srv/a.erofs"}}},
		Machine: &runner.Machine{CPUs: 1, Memory: 256 << 20, Disks: []runner.Disk{{Path: "/d", FS: "ext4", Target: "/a/b"}}},
	}
	if args := (Emulator{}).launch(s).arguments(nil); strings.Contains(strings.Join(args, " "), "memfd") {
		t.Errorf("a machine without mounts shares its memory: %q", args)
	}
	s.Machine.Shares = []mounts.Stage{{Source: "/srv/c", Target: "/a/b/c", ReadOnly: true}, {Source: "/srv/a", Target: "/a"}}
	l := (Emulator{}).launch(s)
	want := []wire.Disk{
		{Serial: "mount1", FS: "virtiofs", Target: "/a"},
		{Serial: "disk0", FS: "ext4", Target: "/a/b"},
		{Serial: "mount0", FS: "virtiofs", Target: "/a/b/c", ReadOnly: true},
	}
	if !slices.Equal(l.Setup.Disks, want) {
		t.Errorf("the guest mounts %+v", l.Setup.Disks)
	}
	args := strings.Join(l.arguments(nil), " ")
	for _, w := range []string{
		"-object memory-backend-memfd,id=ram,size=256M,share=on", ",memory-backend=ram ",
		"-chardev socket,id=share0,fd=7 -device vhost-user-fs-device,chardev=share0,tag=mount0", "socket,id=share1,fd=8 -device vhost-user-fs-device,chardev=share1,tag=mount1",
	} {
		if !strings.Contains(args, w) {
			t.Errorf("QEMU is not told %q: %s", w, args)
		}
	}
	if text := l.describe(); text != "1 CPUs, 256 MiB, /srv/a.erofs; /srv/c at /a/b/c by virtiofs, read-only; /srv/a at /a by virtiofs" {
		t.Errorf("it is described as %q", text)
	}
	if !slices.Contains(l.filesystems(), "virtiofs") {
		t.Errorf("the guest gets the modules of %q", l.filesystems())
	}
}

// TestShareDaemonPlaces: the first daemon that can serve is taken; one that is too old, or that others than root can change, is refused where
// there is no other.
func TestShareDaemonPlaces(t *testing.T) {
	testkit.NeedsRoot(t)
	dir := t.TempDir()
	program := func(name, version string, mode os.FileMode) string {
		path := filepath.Join(dir, name)
		testkit.Must(t, os.WriteFile(path, []byte("#!/bin/sh\necho virtiofsd "+version+"\n"), 0o755))
		testkit.Must(t, os.Chmod(path, mode))
		return path
	}
	old, open, good, later := program("old", "version 6.2.0", 0o755), program("open", "1.13.2", 0o757), program("good", "1.13.2", 0o755), program("later", "1.12.0", 0o755)
	missing := filepath.Join(dir, "missing")
	d, err := shareDaemonOf([]string{missing, old, open, good, later})
	if err != nil || d.String() != good+" 1.13" {
		t.Errorf("%v serves: %v", d, err)
	}
	for _, c := range []struct {
		places []string
		says   string
	}{
		{[]string{missing, old}, `virtiofsd version 6.2.0`},
		{[]string{open, old}, "mounts of machines are not served by " + open + ": others than root can change"},
		{[]string{missing}, "it is not installed"},
	} {
		if _, err := shareDaemonOf(c.places); refuse.KindOf(err) != refuse.Cannot || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%v: %v", c.places, err)
		}
	}
}

// TestDaemonsEnd: QEMU ends its daemons when it ends, and that is no daemon lost, however long it takes until QEMU can be waited for.
func TestDaemonsEnd(t *testing.T) {
	open, closed := make(chan struct{}), make(chan struct{})
	close(closed)
	for name, c := range map[string]struct {
		ended <-chan struct{}
		says  string // after it was asked, before it closes its lines
		want  bool
	}{
		"QEMU goes on":              {open, `{"return": {"status": "running"}, "id": 1}`, true},
		"it closes its lines":       {open, ``, false},
		"it ends as it was told to": {open, `{"return": {}}`, false},
		"it has ended":              {closed, ``, false},
	} {
		ours, theirs := net.Pipe()
		m := &monitor{qmp: newQMP(ours)}
		go m.qmp.read(nil)
		go func() {
			_, _ = bufio.NewReader(theirs).ReadString('\n')
			_, _ = theirs.Write([]byte(c.says))
			if !c.want {
				theirs.Close()
			}
		}()
		if m.emulates(c.ended) != c.want {
			t.Errorf("%s: want %t", name, c.want)
		}
		ours.Close()
		theirs.Close()
		<-m.qmp.ended
		if m.emulates(open) {
			t.Errorf("%s, and then its lines are closed", name)
		}
	}
}

// TestEndShares: a daemon ends with the process that serves, which its own does not end and which holds what it complains to.
func TestEndShares(t *testing.T) {
	s := &share{target: "/data"}
	s.cmd = exec.Command("sh", "-c", "sleep 1000 & echo no such server >&2; wait")
	s.cmd.Stderr, s.cmd.SysProcAttr = &s.complaint, &syscall.SysProcAttr{Setsid: true}
	testkit.Must(t, fork.Start(s.cmd))
	testkit.Eventually(t, "it complains", func() bool { return s.complaint.after("") != "" })
	if said := (&monitor{shares: []*share{s}}).endShares(); said != "; the daemon of mount /data says: no such server" {
		t.Errorf("the daemons say %q", said)
	}
	testkit.Eventually(t, "both processes end", func() bool { return unix.Kill(-s.cmd.Process.Pid, 0) == unix.ESRCH })
}
