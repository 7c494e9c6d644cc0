package gateway

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"berth/internal/host/group"
	"berth/internal/storage/mounts"
	"berth/internal/sys/fork"
	"berth/internal/sys/inherit"
	"berth/internal/sys/proc"
	"berth/internal/sys/refuse"
	"berth/internal/sys/thread"
)

// helperIDs is where the user ids of daemons begin: behind those that package ids gives to nodes (0x40000000 to 0x6fffffff), below 2^31.
// The range of a node gives the number of its daemons: no other node's daemon can trace or signal them.
const helperIDs = 0x70000000

// sharedHelper is the user id of the daemons that serve several nodes.
const sharedHelper = helperIDs + 0xffff

// start starts the daemon: in the node's network and in the place of its helpers, or in the host's.
func (s *SSHFSMount) start(ctx context.Context, node mounts.Running, ids idsInside, fuse *os.File) (*complaints, error) {
	owner, ok := onHost(ids.uid, s.UID)
	ownerGroup, okGroup := onHost(ids.gid, s.GID)
	if !ok || !okGroup {
		return nil, refuse.Invalidf("the node has no user %d or group %d, the owner of its files: set options uid and gid to ids that it has", s.UID, s.GID)
	}
	root, ok := onHost(ids.uid, 0)
	as := helperIDs + root>>16
	if s.shared() {
		as = sharedHelper
	}
	if !ok || root < 1<<16 || holds(ids.uid, as) || holds(ids.gid, as) {
		return nil, refuse.Cannotf("leave out user_namespace: false", "no user id is left for the daemon that is not the node's own")
	}
	if err := inherit.Free(); err != nil { // the daemons, too, are the same whoever starts the node
		return nil, err
	}
	said, err := newComplaints()
	if err != nil {
		return nil, err
	}
	init, err := proc.ID{PID: node.PID, Start: node.Start}.Open()
	if err != nil {
		said.Close()
		return nil, fmt.Errorf("find the node's process 1: %w", err)
	}
	defer init.Close()
	err = thread.Own(func() error {
		place := fork.Start
		if !s.shared() {
			gate, err := group.HelperGate(s.Cgroups, s.Group)
			if err != nil {
				return err
			}
			defer gate.Close()
			place = gate.Start
		}
		if err := s.enter(init, as); err != nil {
			return err
		}
		run := func(cmd *exec.Cmd, start func(*exec.Cmd) error) (proc.ID, error) {
			cmd.Stderr, cmd.Dir = said.w, "/"
			cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Credential: &syscall.Credential{Uid: as, Gid: as}}
			if err := start(cmd); err != nil {
				return proc.ID{}, err
			}
			go fork.Wait(cmd) //nolint:errcheck // it may outlive this command; waiting only spares a zombie
			return proc.Of(cmd.Process.Pid)
		}
		var socket *os.File
		var err error
		if s.SSH == nil {
			socket, err = dial(ctx, s.Server)
		} else {
			// ssh makes its connection itself: outside of the node's group, which the port block keeps from the server.
			socket, err = s.startSSH(func(cmd *exec.Cmd) (proc.ID, error) { return run(cmd, fork.Start) })
		}
		if err != nil {
			return err
		}
		defer socket.Close()
		s.Daemon.SSHFS, err = run(s.sshfs(socket, fuse, said.r, owner, ownerGroup), place)
		if err == nil {
			group.Free(s.Cgroups, s.Daemon.SSH.PID)
		}
		if err == nil && s.shared() {
			group.Free(s.Cgroups, s.Daemon.SSHFS.PID)
		}
		return errors.Join(err, said.unblock())
	})
	if err != nil {
		said.Close()
		return nil, errors.Join(err, s.end(context.WithoutCancel(ctx)))
	}
	return said, nil
}

// enter takes the thread to the node's network. For ssh it has a view of the host of its own, in which the daemon's user has a
// name and the files of its login.
func (s *SSHFSMount) enter(init *os.File, as uint32) error {
	if s.SSH != nil {
		if err := s.login(as); err != nil {
			return err
		}
	}
	if !s.shared() {
		if err := unix.Setns(int(init.Fd()), unix.CLONE_NEWNET); err != nil {
			return fmt.Errorf("enter the node's network: %w", err)
		}
	}
	return unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
}

// login makes the view: a tmpfs that covers the node's live folder holds copies of the files, and a passwd.
func (s *SSHFSMount) login(as uint32) error {
	identity, err := os.ReadFile(s.SSH.Identity)
	if err != nil {
		return fmt.Errorf("read the identity: %w", err)
	}
	known, err := os.ReadFile(s.SSH.KnownHosts)
	if err != nil {
		return fmt.Errorf("read the known hosts: %w", err)
	}
	if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
		return fmt.Errorf("make a mount namespace: %w", err)
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_SLAVE, ""); err != nil {
		return fmt.Errorf("take the mount namespace off the host's: %w", err)
	}
	if err := unix.Mount("berth-ssh", s.Dir, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, "mode=0700,size=16m"); err != nil {
		return fmt.Errorf("mount a tmpfs: %w", err)
	}
	passwd := fmt.Sprintf("berth:x:%d:%d::/nonexistent:/usr/sbin/nologin\n", as, as)
	for name, content := range map[string][]byte{"identity": identity, "known_hosts": known, "passwd": []byte(passwd)} {
		path := filepath.Join(s.Dir, name)
		if err := os.WriteFile(path, content, 0o400); err != nil {
			return fmt.Errorf("copy the files of the login: %w", err)
		}
		if err := os.Chown(path, int(as), int(as)); err != nil {
			return fmt.Errorf("copy the files of the login: %w", err)
		}
	}
	if err := unix.Mount(filepath.Join(s.Dir, "passwd"), "/etc/passwd", "", unix.MS_BIND, ""); err != nil {
		return fmt.Errorf("name the daemon's user: %w", err)
	}
	return os.Chown(s.Dir, int(as), int(as))
}

// startSSH starts ssh, and returns the socket by which it carries SFTP.
func (s *SSHFSMount) startSSH(run func(*exec.Cmd) (proc.ID, error)) (*os.File, error) {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	ours, theirs := os.NewFile(uintptr(pair[0]), "sftp"), os.NewFile(uintptr(pair[1]), "ssh")
	defer theirs.Close()
	address, port, err := net.SplitHostPort(s.Server)
	if err != nil {
		ours.Close()
		return nil, err
	}
	alias := s.Host // as the file of known hosts names the server
	if port != strconv.Itoa(sshPort) {
		alias = "[" + s.Host + "]:" + port
	}
	ssh, err := exec.LookPath("ssh")
	if err != nil {
		ours.Close()
		return nil, refuse.Cannotf("apt install openssh-client", "gateway sshfs needs the program ssh: %w", err)
	}
	args := []string{"ssh", "-F", "none", "-a", "-x", "-T", "-p", port, "-l", s.SSH.User}
	for _, o := range []string{
		"BatchMode=yes", "StrictHostKeyChecking=yes", "UpdateHostKeys=no", "CheckHostIP=no", "HostKeyAlias=" + alias,
		"UserKnownHostsFile=" + filepath.Join(s.Dir, "known_hosts"), "GlobalKnownHostsFile=/dev/null",
		"IdentityFile=" + filepath.Join(s.Dir, "identity"), "IdentitiesOnly=yes", "IdentityAgent=none", "PreferredAuthentications=publickey",
		"ClearAllForwardings=yes", "ControlPath=none", "EscapeChar=none",
		"ConnectTimeout=10", "ServerAliveInterval=10", "ServerAliveCountMax=3", "LogLevel=ERROR",
	} {
		args = append(args, "-o", o)
	}
	cmd := &exec.Cmd{Path: ssh, Args: append(args, "-s", "--", address, "sftp"), Env: []string{"PATH=/usr/bin:/bin"}, Stdin: theirs, Stdout: theirs}
	if s.Daemon.SSH, err = run(cmd); err != nil {
		ours.Close()
		return nil, err
	}
	return ours, nil
}

// sshfs returns the command of the daemon. The daemon also gets the reading end of the pipe of its standard error, so that
// writes to it do not fail when no other process has that end open.
func (s *SSHFSMount) sshfs(socket, fuse, said *os.File, uid, gid uint32) *exec.Cmd {
	// fuse is descriptor 3 of the process, and said 4.
	o := append([]string{
		"passive", "no_check_root", "uid=" + strconv.Itoa(int(uid)), "gid=" + strconv.Itoa(int(gid)), "dcache_timeout=1",
	}, s.Tuning...)
	path, err := exec.LookPath("sshfs")
	if err != nil {
		path = "/usr/bin/sshfs" // the start will say that it is gone
	}
	// Links are passed on as they are: they lead through the node's own files. Newer versions check them unless told otherwise.
	if help, err := fork.Output(exec.Command(path, "--help")); err == nil && bytes.Contains(help, []byte("no_contain_symlinks")) {
		o = append(o, "no_contain_symlinks")
	}
	from := s.Path
	if s.SSH == nil {
		from = strings.TrimPrefix(s.Path, "/") // the folder that is served is where a session begins
	}
	return &exec.Cmd{
		Path: path, Args: []string{"sshfs", "-f", "server:" + from, "/dev/fd/3", "-o", strings.Join(o, ",")},
		Env: []string{"PATH=/usr/bin:/bin"}, Stdin: socket, Stdout: socket, ExtraFiles: []*os.File{fuse, said},
	}
}

// How long a server that went away without a word is waited for.
const (
	connectTime = 10 * time.Second
	silentTime  = 30 * time.Second
)

// dial connects to a server from the network namespace of this thread.
func dial(ctx context.Context, server string) (*os.File, error) {
	at, err := netip.ParseAddrPort(server)
	if err != nil {
		return nil, err
	}
	family, sa := unix.AF_INET6, unix.Sockaddr(&unix.SockaddrInet6{Addr: at.Addr().As16(), Port: int(at.Port())})
	if at.Addr().Is4() {
		family, sa = unix.AF_INET, &unix.SockaddrInet4{Addr: at.Addr().As4(), Port: int(at.Port())}
	}
	fd, err := unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("connect to file server %s: %w", server, err)
	}
	f := os.NewFile(uintptr(fd), server)
	err = unix.Connect(fd, sa)
	if errors.Is(err, unix.EINPROGRESS) {
		err = awaitConnected(ctx, fd)
	}
	if err == nil {
		err = errors.Join(
			unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_NODELAY, 1), unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_KEEPALIVE, 1),
			unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_KEEPIDLE, 10), unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_KEEPINTVL, 5),
			unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(silentTime.Milliseconds())), unix.SetNonblock(fd, false))
	}
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("connect to file server %s: %w", server, err)
	}
	return f, nil
}

func awaitConnected(ctx context.Context, fd int) error {
	for began := time.Now(); time.Since(began) < connectTime; {
		if err := ctx.Err(); err != nil {
			return err
		}
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLOUT}}, 100)
		if err != nil && !errors.Is(err, unix.EINTR) {
			return err
		}
		if n > 0 {
			code, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_ERROR)
			if err == nil && code != 0 {
				err = unix.Errno(code)
			}
			return err
		}
	}
	return unix.ETIMEDOUT
}

// complaints is the pipe for the standard error of a daemon. It need not be read: what does not fit is lost.
type complaints struct{ r, w *os.File }

func newComplaints() (*complaints, error) {
	r, w, err := os.Pipe()
	return &complaints{r: r, w: w}, err
}

// unblock makes writers not wait for a reader. It is called when the processes have their ends, which os/exec makes wait.
func (c *complaints) unblock() error {
	return errors.Join(unix.SetNonblock(int(c.r.Fd()), true), unix.SetNonblock(int(c.w.Fd()), true))
}

// text returns what was written until now, in one line.
func (c *complaints) text() string {
	b := make([]byte, 4096)
	n, _ := unix.Read(int(c.r.Fd()), b) // EAGAIN: nothing was said
	return strings.Join(strings.FieldsFunc(string(b[:max(n, 0)]), func(r rune) bool { return r == '\n' || r == '\r' }), "; ")
}

func (c *complaints) Close() {
	c.r.Close()
	c.w.Close()
}
