package sftpserve

import (
	"debug/elf"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"berth/internal/sys/fork"
	"berth/internal/sys/refuse"
)

// identity is the user that sessions run as.
type identity struct {
	name     string
	uid, gid uint32
	groups   []uint32
}

// jail is the root of sessions: a small read-only root with sftp-server, its libraries and /dev/null, and the folder at /data,
// where a session begins. A client names files relative to that; by absolute names it comes to public files of this jail only.
type jail struct {
	dir string // no part of it is a link
	as  identity
}

// data is where the folder is in the jail.
const data = "/data"

// folder resolves the folder that is served.
func folder(dir string) (string, error) {
	if !filepath.IsAbs(dir) {
		return "", refuse.Invalidf("serve %s: want the folder's absolute path", dir)
	}
	path, err := filepath.EvalSymlinks(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return "", refuse.NotFoundf("serve %s: there is no such folder", dir)
	}
	if err != nil {
		return "", fmt.Errorf("serve %s: %w", dir, err)
	}
	info, err := os.Lstat(path)
	if err != nil {
		return "", fmt.Errorf("serve %s: %w", dir, err)
	}
	if !info.IsDir() {
		return "", refuse.Invalidf("serve %s: it is not a folder", dir)
	}
	for _, top := range []string{"/proc", "/sys", "/dev"} {
		if path == "/" || path == top || strings.HasPrefix(path, top+"/") {
			return "", refuse.Invalidf("serve %s: it is the host's own; name a folder with files for nodes", path)
		}
	}
	return path, nil
}

// enter makes the jail and enters it with the calling thread, which cannot leave it any more.
func (j *jail) enter() error {
	files, err := programFiles()
	if err != nil {
		return err
	}
	if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
		return fmt.Errorf("make a mount namespace: %w", err)
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("take the mount namespace off the host's: %w", err)
	}
	tree, err := j.open()
	if err != nil {
		return err
	}
	defer unix.Close(tree)
	var parts []part
	for _, f := range files {
		fd, err := unix.OpenTree(unix.AT_FDCWD, f.from, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC)
		if err != nil {
			return fmt.Errorf("open %s: %w", f.from, err)
		}
		defer unix.Close(fd)
		parts = append(parts, part{file: f, fd: fd})
	}
	const root = "/run" // hidden for this thread alone
	if err := unix.Mount("berth-sftp", root, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "mode=0755,size=1m"); err != nil {
		return fmt.Errorf("mount a tmpfs: %w", err)
	}
	if err := j.fill(root, tree, parts); err != nil {
		return err
	}
	if err := os.Chdir(root); err != nil {
		return err
	}
	if err := unix.PivotRoot(".", "."); err != nil {
		return fmt.Errorf("change the root: %w", err)
	}
	if err := unix.Unmount(".", unix.MNT_DETACH); err != nil {
		return fmt.Errorf("unmount the host's root: %w", err)
	}
	if err := os.Chdir("/"); err != nil {
		return err
	}
	if err := unix.Mount("", "/", "", unix.MS_REMOUNT|unix.MS_BIND|unix.MS_RDONLY|unix.MS_NOSUID|unix.MS_NODEV, ""); err != nil {
		return fmt.Errorf("close the root to writes: %w", err)
	}
	return unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
}

// open copies the mount of the folder, with the mounts beneath it.
func (j *jail) open() (int, error) {
	at, err := unix.Openat2(unix.AT_FDCWD, j.dir, &unix.OpenHow{
		Flags: unix.O_PATH | unix.O_DIRECTORY | unix.O_CLOEXEC, Resolve: unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS,
	})
	if err != nil {
		return -1, fmt.Errorf("open %s: %w", j.dir, err)
	}
	defer unix.Close(at)
	fd, err := unix.OpenTree(at, "", unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_EMPTY_PATH|unix.AT_RECURSIVE)
	if err != nil {
		return -1, fmt.Errorf("copy the mount of %s: %w", j.dir, err)
	}
	return fd, nil
}

// part is a file of the host whose mount was copied.
type part struct {
	file
	fd int
}

// fill makes the content of the jail.
func (j *jail) fill(root string, tree int, parts []part) error {
	passwd := fmt.Sprintf("%s:x:%d:%d::%s:/usr/sbin/nologin\n", j.as.name, j.as.uid, j.as.gid, data)
	for _, err := range []error{
		os.Mkdir(root+data, 0o755), os.Mkdir(root+"/etc", 0o755), os.WriteFile(root+"/etc/passwd", []byte(passwd), 0o644),
	} {
		if err != nil {
			return err
		}
	}
	attr := unix.MountAttr{Attr_set: unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NODEV | unix.MOUNT_ATTR_NOEXEC, Propagation: unix.MS_PRIVATE}
	if err := unix.MountSetattr(tree, "", unix.AT_EMPTY_PATH|unix.AT_RECURSIVE, &attr); err != nil {
		return fmt.Errorf("set the mount of %s: %w", j.dir, err)
	}
	if err := unix.MoveMount(tree, "", unix.AT_FDCWD, root+data, unix.MOVE_MOUNT_F_EMPTY_PATH); err != nil {
		return fmt.Errorf("mount %s: %w", j.dir, err)
	}
	for _, p := range parts {
		at := root + p.at
		if err := os.MkdirAll(filepath.Dir(at), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(at, nil, 0o644); err != nil {
			return err
		}
		attr := unix.MountAttr{Attr_set: unix.MOUNT_ATTR_NOSUID, Propagation: unix.MS_PRIVATE}
		if p.at != os.DevNull {
			attr.Attr_set |= unix.MOUNT_ATTR_RDONLY | unix.MOUNT_ATTR_NODEV
		}
		if err := unix.MountSetattr(p.fd, "", unix.AT_EMPTY_PATH, &attr); err != nil {
			return fmt.Errorf("set the mount of %s: %w", p.from, err)
		}
		if err := unix.MoveMount(p.fd, "", unix.AT_FDCWD, at, unix.MOVE_MOUNT_F_EMPTY_PATH); err != nil {
			return fmt.Errorf("mount %s: %w", p.from, err)
		}
	}
	return nil
}

// file is a file of the host and its place in the jail.
type file struct{ from, at string }

// programFiles lists the files that sftp-server needs to run: itself, its loader, its libraries, as the loader finds them, and
// /dev/null.
func programFiles() ([]file, error) {
	all := []file{{os.DevNull, os.DevNull}, {Program, Program}}
	bin, err := elf.Open(Program)
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", Program, err)
	}
	defer bin.Close()
	loader := ""
	for _, p := range bin.Progs {
		if p.Type == elf.PT_INTERP {
			text := make([]byte, p.Filesz)
			if _, err := p.ReadAt(text, 0); err != nil {
				return nil, fmt.Errorf("read %s: %w", Program, err)
			}
			loader = strings.TrimRight(string(text), "\x00")
		}
	}
	if loader == "" { // linked statically
		return all, nil
	}
	out, err := fork.Output(exec.Command(loader, "--list", Program))
	if err != nil {
		return nil, fmt.Errorf("list the libraries of %s: %w", Program, err)
	}
	names := []string{loader}
	for line := range strings.Lines(string(out)) {
		for word := range strings.FieldsSeq(line) { // "libc.so.6 => /lib/…/libc.so.6 (0x…)"
			if strings.HasPrefix(word, "/") && word != loader {
				names = append(names, word)
			}
		}
	}
	for _, name := range names {
		path, err := filepath.EvalSymlinks(name)
		if err != nil {
			return nil, fmt.Errorf("find %s, which %s needs: %w", name, Program, err)
		}
		all = append(all, file{path, name})
	}
	return all, nil
}

// session is the process of one client before it starts, with the files that it gets.
type session struct {
	cmd   *exec.Cmd
	files []*os.File
}

func (s *session) close() {
	for _, f := range s.files {
		f.Close()
	}
}

// command makes the command of a session, to be started on the calling thread, which is in the jail. The session's user is not root, it
// has no network beside its socket, and sees no process of the host. The caller closes it once it is started.
func (j *jail) command(c *net.TCPConn) (*session, error) {
	socket, err := c.File()
	if err != nil {
		return nil, err
	}
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		socket.Close()
		return nil, err
	}
	cmd := &exec.Cmd{
		Path: Program, Args: []string{"sftp-server", "-d", data, "-u", "0"}, // the client has applied the umask of its user
		Env: []string{}, Stdin: socket, Stdout: socket, Stderr: null,
		SysProcAttr: &syscall.SysProcAttr{
			Credential: &syscall.Credential{Uid: j.as.uid, Gid: j.as.gid, Groups: j.as.groups},
			Setsid:     true, Pdeathsig: syscall.SIGKILL,
			Cloneflags: unix.CLONE_NEWPID | unix.CLONE_NEWIPC | unix.CLONE_NEWUTS | unix.CLONE_NEWNET,
		},
	}
	return &session{cmd, []*os.File{socket, null}}, nil
}

// Starter starts a session's process for a client, and returns the name of the node for which it works; "" for none.
type Starter func(client netip.Addr, cmd *exec.Cmd) (node string, err error)

// plain starts a session for no node.
func plain(_ netip.Addr, cmd *exec.Cmd) (string, error) { return "", fork.Start(cmd) }
