package machine

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"berth/internal/runner/machine/wire"
	"berth/internal/storage/mounts"
	"berth/internal/sys/file"
	"berth/internal/sys/fork"
	"berth/internal/sys/refuse"
	"berth/internal/sys/thread"
)

// Shares are folders of the host that the guest mounts: its kernel sends requests of FUSE by a virtio device (virtiofs), and a daemon on the
// host, virtiofsd, carries them out. Each share has a daemon of its own. QEMU only makes the guest's memory one that the daemon can map, and
// tells it where the requests are (vhost-user).
//
// The guest speaks to the daemon directly, so the daemon is as hostile as the guest. It is root of a user namespace with the ids of the
// node, whose folder is mounted as a container has it: with the same ids, nosuid, nodev and read-only. It makes that folder its
// root, and its own mount, PID and network namespaces (its sandbox "namespace"), drops the rights that it does not need, and kills itself at
// a system call that it has no use for. It is the monitor's child: it ends with the machine, and the machine with it, as the guest
// could not go on without it.

// shareDaemon is the daemon's program.
const shareDaemon = "virtiofsd"

// sharePlaces are where distributions have it outside of PATH: the one of Rust (Debian 13, Fedora), the one of QEMU up to 7.2 (Debian 12), and
// the one of Rust again (Arch).
func sharePlaces() []string {
	return []string{"/usr/libexec/virtiofsd", "/usr/lib/qemu/virtiofsd", "/usr/lib/virtiofsd"}
}

// ShareDaemon is the daemon's program, and what it understands.
type ShareDaemon struct {
	Path    string `json:"path"`
	Version string `json:"version"`          // "7.2"
	Legacy  bool   `json:"legacy,omitempty"` // it is QEMU's own, which is written in C
	MMap    bool   `json:"mmap,omitempty"`   // it can let the guest map files that are not cached
}

func (d *ShareDaemon) String() string { return d.Path + " " + d.Version }

// FindShareDaemon finds the daemon's program, and asks it for its version. One of the distribution's comes before one in PATH, which may be
// another for each caller.
func FindShareDaemon() (*ShareDaemon, error) {
	places := sharePlaces()
	if path, err := exec.LookPath(shareDaemon); err == nil {
		places = append(places, path)
	}
	return shareDaemonOf(places)
}

// shareDaemonOf takes the first that is there and can serve.
func shareDaemonOf(places []string) (*ShareDaemon, error) {
	var first error
	for _, path := range places {
		at, err := filepath.EvalSymlinks(path)
		if err != nil {
			continue
		}
		d, err := lookAtShareDaemon(at)
		if err == nil {
			return d, nil
		}
		first = cmp.Or(first, err)
	}
	if first != nil {
		return nil, first
	}
	return nil, refuse.Cannotf("apt-get install virtiofsd (Debian 13), or qemu-system-common of Debian 12 itself: the one of its backports lacks it",
		"mounts of machines are served by %s, and it is not installed", shareDaemon)
}

// lookAtShareDaemon asks a program for its version. Root starts it: only root may be able to change it.
func lookAtShareDaemon(path string) (*ShareDaemon, error) {
	_, err := file.RootOnly(path)
	if e, open := errors.AsType[*file.NotRootOnly](err); open {
		return nil, refuse.Cannotf("give it to root: chown root "+e.At+"; chmod go-w "+e.At, "mounts of machines are not served by %s: others than root can change %s", path, e.At)
	}
	if err != nil {
		return nil, err
	}
	said, err := fork.Output(&exec.Cmd{Path: path, Args: []string{shareDaemon, "--version"}, Env: []string{}})
	if err != nil {
		return nil, fmt.Errorf("ask %s for its version: %w", path, err)
	}
	d := &ShareDaemon{Path: path}
	return d, d.understand(string(said))
}

// mostShareFiles is how many files a daemon may have open: those that the guest has open, and those that its kernel knows (it is told to
// forget a file when nobody in the guest uses it any more). It is the host's memory, in the node's group.
const mostShareFiles = 20_000

// readDaemon reads the daemon's program, which is copied to where the daemon starts; nil where the machine has no shares. The caller has the
// host's files.
func (l *Launch) readDaemon() ([]byte, error) {
	if len(l.Machine.Shares) == 0 {
		return nil, nil
	}
	f, err := openRegular(func(flags int) (*os.File, error) { return os.OpenFile(l.ShareDaemon.Path, flags, 0) }, mostModule)
	if err != nil {
		return nil, fmt.Errorf("read the daemon of mounts: %w", err)
	}
	defer f.Close()
	text, err := io.ReadAll(f)
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", l.ShareDaemon.Path, err)
	}
	return text, nil
}

// understand reads what the daemon says of its version: "virtiofsd version 7.2.22 (Debian …)" of QEMU's, "virtiofsd 1.13.2" of that in Rust.
// QEMU's before 7.0 let guests make files of groups of the host's (CVE-2022-0358); that in Rust has the words that it is told since 1.10.
func (d *ShareDaemon) understand(said string) error {
	line, _, _ := strings.Cut(said, "\n")
	after, ok := strings.CutPrefix(line, "virtiofsd ")
	after, d.Legacy = strings.CutPrefix(after, "version ")
	var major, minor uint
	_, err := fmt.Sscanf(after, "%d.%d", &major, &minor)
	d.Version = fmt.Sprintf("%d.%d", major, minor)
	d.MMap = !d.Legacy && (major > 1 || major == 1 && minor >= 11)
	if !ok || err != nil || d.Legacy && major < 7 || !d.Legacy && (major < 1 || major == 1 && minor < 10) {
		return refuse.Cannotf("install virtiofsd 1.10 or newer, or that of QEMU 7.2", "mounts of machines are not served by %s, which says %q for its version", cmp.Or(d.Path, shareDaemon), line)
	}
	return nil
}

// arguments are the daemon's, for a folder and the number of its listening socket. The guest's kernel may keep nothing that it knows of
// a file beyond its use: so what others write is seen at once, and a walk through a tree does not use up the daemon's descriptors.
// Of the capabilities that the daemon keeps, it needs neither that to make devices, which its namespace is refused, nor that to give files
// capabilities, which would be true for the host's root.
func (d *ShareDaemon) arguments(dir string, fd, files int) []string {
	const unused = "-mknod:-setfcap"
	limit := fmt.Sprintf("--rlimit-nofile=%d", files)
	if d.Legacy {
		return []string{
			shareDaemon, "-f", fmt.Sprintf("--fd=%d", fd), limit, "-o", "source=" + dir,
			"-o", "sandbox=namespace,cache=auto,timeout=0,no_readdirplus,no_xattr,no_posix_acl,no_flock,no_posix_lock,announce_submounts,log_level=err,modcaps=" + unused,
		}
	}
	args := []string{
		shareDaemon, fmt.Sprintf("--fd=%d", fd), limit, "--shared-dir=" + dir, "--sandbox=namespace", "--seccomp=kill",
		"--cache=never", "--inode-file-handles=never", "--announce-submounts", "--log-level=error", "--modcaps=" + unused,
	}
	if d.MMap {
		args = append(args, "--allow-mmap")
	}
	return args
}

// Where the monitor's root has, until the daemons have started, what they start with.
const (
	sharesAt = "/shares"
	daemonAt = "/virtiofsd"
	procAt   = "/proc"
)

func shareAt(i int) string { return fmt.Sprintf("%s/%d", sharesAt, i) }

// shareTag is the name by which the guest finds a share.
func shareTag(i int) string { return fmt.Sprintf("mount%d", i) }

// shareDisk is what the guest is told of a share.
func shareDisk(i int, s *mounts.Stage) wire.Disk {
	return wire.Disk{Serial: shareTag(i), FS: wire.VirtioFS, Target: s.Target, ReadOnly: s.ReadOnly}
}

// addShares adds to the root that is being made, at a folder, what the daemons start with. Their mounts are open as descriptors.
func (l *Launch) addShares(root string, daemon []byte) error {
	if daemon == nil {
		return nil
	}
	for i := range l.Machine.Shares {
		at := filepath.Join(root, shareAt(i))
		if err := os.MkdirAll(at, 0o755); err != nil {
			return err
		}
		tree := os.NewFile(uintptr(sharesFD+i), "share")
		err := mounts.Attach(tree, at)
		tree.Close()
		if err != nil {
			return err
		}
	}
	// A daemon mounts a /proc of its own for its descriptors. The kernel lets it do so where it sees all of one.
	if err := os.Mkdir(filepath.Join(root, procAt), 0o555); err != nil {
		return err
	}
	if err := unix.Mount("proc", filepath.Join(root, procAt), "proc", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, ""); err != nil {
		return fmt.Errorf("mount proc for the daemons of mounts: %w", err)
	}
	return os.WriteFile(filepath.Join(root, daemonAt), daemon, 0o755)
}

// share is a daemon that runs.
type share struct {
	target    string
	cmd       *exec.Cmd
	complaint tail
}

// startShares starts the daemons and returns QEMU's lines to them. The folders are mounted in the monitor's root no more then.
func (m *monitor) startShares() (lines []*os.File, err error) {
	if len(m.launch.Machine.Shares) == 0 {
		return nil, nil
	}
	for i := range m.launch.Machine.Shares {
		line, err := m.startShare(i)
		if err != nil {
			return nil, fmt.Errorf("start the daemon of mount %s: %w", m.launch.Machine.Shares[i].Target, err)
		}
		lines = append(lines, line)
	}
	// Their places stay until emptyRoot: a folder that is removed loses its mounts in the daemons' namespaces, too.
	for i := range lines {
		if err := unix.Unmount(shareAt(i), unix.MNT_DETACH); err != nil {
			return nil, fmt.Errorf("take a mount from the machine's root: %w", err)
		}
	}
	if err := unix.Unmount(procAt, unix.MNT_DETACH); err != nil {
		return nil, fmt.Errorf("take proc from the machine's root: %w", err)
	}
	return lines, nil
}

// startShare starts one daemon. It sees what is in the monitor's root until it has its own.
func (m *monitor) startShare(i int) (*os.File, error) {
	listening, line, err := shareLine(i)
	if err != nil {
		return nil, err
	}
	defer listening.Close()
	null, err := nullDevice()
	if err != nil {
		line.Close()
		return nil, err
	}
	defer null.Close()
	s := &share{target: m.launch.Machine.Shares[i].Target}
	s.cmd = &exec.Cmd{
		Path: daemonAt, Args: m.launch.ShareDaemon.arguments(shareAt(i), 3, shareFiles()), Env: []string{}, Dir: "/",
		Stdin: null, Stdout: null, Stderr: &s.complaint, ExtraFiles: []*os.File{listening},
		SysProcAttr: &syscall.SysProcAttr{Setsid: true, Cloneflags: unix.CLONE_NEWNS | unix.CLONE_NEWIPC | unix.CLONE_NEWUTS | unix.CLONE_NEWCGROUP},
	}
	m.launch.ids().Attr(s.cmd.SysProcAttr)
	err = thread.Own(func() error {
		if err := errors.Join(leaveKeyring(), noDump(), unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)); err != nil {
			return err
		}
		return fork.Start(s.cmd)
	})
	if err != nil {
		line.Close()
		return nil, err
	}
	m.shares = append(m.shares, s)
	return line, nil
}

// shareLine makes a listening socket, which virtiofsd wants, and a line to it, whose name is gone when the monitor's network is.
func shareLine(i int) (listening, line *os.File, err error) {
	at := &unix.SockaddrUnix{Name: fmt.Sprintf("@berth-share%d", i)}
	socket := func(set func(fd int) error) (*os.File, error) {
		fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return nil, err
		}
		if err := set(fd); err != nil {
			unix.Close(fd)
			return nil, err
		}
		return os.NewFile(uintptr(fd), "share"), nil
	}
	listening, err = socket(func(fd int) error { return errors.Join(unix.Bind(fd, at), unix.Listen(fd, 1)) })
	if err != nil {
		return nil, nil, fmt.Errorf("make a socket: %w", err)
	}
	line, err = socket(func(fd int) error { return unix.Connect(fd, at) })
	if err != nil {
		listening.Close()
		return nil, nil, fmt.Errorf("make a line to it: %w", err)
	}
	return listening, line, nil
}

// shareFiles is how many files a daemon may have open, on a host that lets this process have no more.
func shareFiles() int {
	var is unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &is); err != nil {
		return 1024
	}
	return int(min(is.Max, mostShareFiles))
}

// watchShares tells of a daemon that has ended: the guest would wait for its answers for ever. ended tells of the emulator.
func (m *monitor) watchShares(ended <-chan struct{}) (lost <-chan struct{}) {
	one := make(chan struct{}, len(m.shares))
	for _, s := range m.shares {
		go func() {
			how := howEnded(fork.Wait(s.cmd))
			if !m.emulates(ended) {
				return
			}
			fmt.Fprintf(m.console, "berth: the daemon of mount %s has ended (%s)%s: the machine ends\n", s.target, how, s.complaint.after(": "))
			one <- struct{}{}
		}()
	}
	return one
}

// emulates reports whether QEMU goes on although a daemon has ended. One that ends by itself closes its lines before it can be waited for, which
// takes as long as its memory is freed, and each daemon ends with its line: it answers no more then, and closes the line by which it is asked.
func (m *monitor) emulates(ended <-chan struct{}) bool {
	select {
	case <-ended:
		return false
	case <-m.qmp.ended:
		return false
	default:
		return !errors.Is(m.qmp.call(context.Background(), "query-status", nil, nil), errGone)
	}
}

// endShares ends the daemons of a machine that does not start, and returns what they complained of.
func (m *monitor) endShares() string {
	var all bytes.Buffer
	for _, s := range m.shares {
		// Both of its processes: the one that serves is a child, and has its standard error, too. It may hang in a file server's folder.
		_ = unix.Kill(-s.cmd.Process.Pid, unix.SIGKILL)
		s.cmd.WaitDelay = quitTime
		_ = fork.Wait(s.cmd)
		all.WriteString(s.complaint.after("; the daemon of mount " + s.target + " says: "))
	}
	return all.String()
}

// ids is the map of ids of the node.
func (l *Launch) ids() mounts.IDs { return mounts.IDs{Base: l.IDs, Size: l.IDCount} }
