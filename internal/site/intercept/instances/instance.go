// Package instances runs a second server for a node, beside the one that all others use: new connections from the node's addresses
// are given to its listening socket by a program of BPF (sk_lookup), so what the node asks for is done by a process of its own. The
// caller starts it in a group of block I/O; cgroup v2 limits whole processes only.
//
// A node whose instance does not listen is refused, never served by the main server.
package instances

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
	"unicode"

	"golang.org/x/sys/unix"

	"berth/internal/sys/fork"
	"berth/internal/sys/proc"
	"berth/internal/sys/refuse"
	"berth/internal/sys/thread"
)

// Server has the settings that all instances of a server share.
type Server struct {
	Dir     string   // with a folder for each node
	Command []string // {node}, {port} and {dir} stand for the node's name, the port to listen at, and the instance's folder
	UID     uint32   // the user that it runs as
	GID     uint32
	Groups  []uint32
	Netns   *os.File // network namespace of the server
}

// State returns the folder of an instance's own, which belongs to its user.
func (s *Server) State(node string) string { return filepath.Join(s.Dir, node, "state") }

// Log returns the path of the file with an instance's output.
func (s *Server) Log(node string) string { return filepath.Join(s.Dir, node, "log") }

// The variables that an instance finds in its environment. State is how it is found when no record tells of it.
const (
	nodeVariable = "BERTH_NODE"
	portVariable = "BERTH_PORT"
	dirVariable  = "BERTH_DIR"
)

// mostLog is from which size on the log of an instance begins anew when it is started.
const mostLog = 1 << 20

// Start starts the instance of a node. enter starts a command in the node's group, on a thread that ends after it. wait waits for
// the end of the instance, and is called once.
func (s *Server) Start(node string, port uint16, enter func(*exec.Cmd) error) (id proc.ID, wait func() error, err error) {
	if err := os.MkdirAll(filepath.Dir(s.State(node)), 0o755); err != nil {
		return id, nil, err
	}
	if err := os.Mkdir(s.State(node), 0o700); err != nil && !errors.Is(err, os.ErrExist) {
		return id, nil, err
	}
	if err := os.Lchown(s.State(node), int(s.UID), int(s.GID)); err != nil {
		return id, nil, err
	}
	log, err := os.OpenFile(s.Log(node), os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o640)
	if err != nil {
		return id, nil, err
	}
	defer log.Close()
	if st, err := log.Stat(); err == nil && st.Size() > mostLog {
		_ = log.Truncate(0)
	}
	values := strings.NewReplacer("{node}", node, "{port}", strconv.Itoa(int(port)), "{dir}", s.State(node))
	cmd := &exec.Cmd{
		Path: s.Command[0], Dir: s.State(node), Stdout: log, Stderr: log,
		Env: []string{
			"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME=" + s.State(node),
			nodeVariable + "=" + node, portVariable + "=" + strconv.Itoa(int(port)), dirVariable + "=" + s.State(node),
		},
		SysProcAttr: &syscall.SysProcAttr{Setsid: true, Credential: &syscall.Credential{Uid: s.UID, Gid: s.GID, Groups: s.Groups}},
	}
	for _, a := range s.Command {
		cmd.Args = append(cmd.Args, values.Replace(a))
	}
	err = s.inside(func() error { return enter(cmd) })
	if err != nil {
		return id, nil, fmt.Errorf("start %s for node %s: %w", s.Command[0], node, err)
	}
	if id, err = proc.Of(cmd.Process.Pid); err != nil { // a zombie counts, so this is no end of it
		return id, nil, errors.Join(err, cmd.Process.Kill(), fork.Wait(cmd))
	}
	return id, func() error { return fork.Wait(cmd) }, nil
}

// inside runs f on a thread in the network namespace of the server.
func (s *Server) inside(f func() error) error {
	return thread.Own(func() error {
		if err := unix.Setns(int(s.Netns.Fd()), unix.CLONE_NEWNET); err != nil {
			return fmt.Errorf("enter the network namespace %s: %w", s.Netns.Name(), err)
		}
		return f()
	})
}

// FreePort returns a port of TCP that nothing uses in the server's network namespace.
func (s *Server) FreePort() (port uint16, err error) {
	err = s.inside(func() error {
		for _, family := range []int{unix.AF_INET6, unix.AF_INET} { // the first takes both, if the host has it
			fd, err := unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
			if err != nil {
				continue
			}
			defer unix.Close(fd)
			var any unix.Sockaddr = &unix.SockaddrInet6{}
			if family == unix.AF_INET {
				any = &unix.SockaddrInet4{}
			}
			if unix.Bind(fd, any) == nil {
				name, _ := unix.Getsockname(fd)
				port = portOf(name)
				return nil
			}
		}
		return fmt.Errorf("find a free port in the network namespace %s", s.Netns.Name())
	})
	return port, err
}

func portOf(name unix.Sockaddr) uint16 {
	switch a := name.(type) {
	case *unix.SockaddrInet4:
		return uint16(a.Port)
	case *unix.SockaddrInet6:
		return uint16(a.Port)
	}
	return 0
}

// Listening waits until the process of a pidfd listens at a port, and returns its socket. The caller closes it soon: while it has
// it, the kernel does not see that the instance ended. ok is false if the process ended.
func Listening(ctx context.Context, pidfd *os.File, id proc.ID, port uint16) (socket *os.File, ok bool, err error) {
	for pause := time.Millisecond; ; pause = min(2*pause, 50*time.Millisecond) {
		socket, err := listening(pidfd, id, port)
		if socket != nil || err != nil {
			return socket, true, err
		}
		if proc.WaitFor(ctx, pidfd, pause) {
			return nil, false, nil
		}
		if ctx.Err() != nil {
			return nil, true, fmt.Errorf("process %d does not listen at port %d", id.PID, port)
		}
	}
}

// listening looks for the socket once; nil if there is none.
func listening(pidfd *os.File, id proc.ID, port uint16) (*os.File, error) {
	dir := filepath.Join("/proc", strconv.Itoa(id.PID), "fd")
	all, err := os.ReadDir(dir)
	if err != nil {
		return nil, nil //nolint:nilerr // it ends, and the caller sees it; or this process has no descriptor left, for now
	}
	conn, err := pidfd.SyscallConn()
	if err != nil {
		return nil, err
	}
	for _, e := range all {
		number, err := strconv.Atoi(e.Name())
		if to, linkErr := os.Readlink(filepath.Join(dir, e.Name())); err != nil || linkErr != nil || !strings.HasPrefix(to, "socket:") {
			continue
		}
		fd := -1
		if ctlErr := conn.Control(func(p uintptr) { fd, err = unix.PidfdGetfd(int(p), number, 0) }); ctlErr != nil {
			return nil, ctlErr
		}
		if errors.Is(err, unix.EBADF) || errors.Is(err, unix.ESRCH) || errors.Is(err, unix.EMFILE) || errors.Is(err, unix.ENFILE) {
			continue // it was closed; or no descriptor is free, for now
		}
		if err != nil {
			return nil, refuse.Cannotf("it takes Linux 5.6 or later, and the capability CAP_SYS_PTRACE", "take the socket of process %d: %w", id.PID, err)
		}
		if listens(fd, port) {
			return os.NewFile(uintptr(fd), "socket"), nil
		}
		_ = unix.Close(fd)
	}
	return nil, nil
}

func listens(fd int, port uint16) bool {
	accepts, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_ACCEPTCONN)
	if err != nil || accepts == 0 {
		return false
	}
	name, err := unix.Getsockname(fd)
	return err == nil && portOf(name) == port
}

// End ends an instance: of the processes in procs, the file of a node's group, those that are an instance of the node, or of the session
// of one (0: not known). It asks them to end, and kills those that run after the grace. It returns when they have ended.
func (s *Server) End(node, procs string, session int, grace time.Duration) error {
	const killing, pause = 3 * time.Second, 20 * time.Millisecond
	killed := time.Time{} // when those that are left were killed first
	for begun, asked := time.Now(), map[int]bool{}; ; {
		all, err := s.processes(node, procs, session)
		if err != nil || len(all) == 0 {
			return err
		}
		late := time.Since(begun) > grace
		if late && killed.IsZero() {
			killed = time.Now()
		}
		for pid, pidfd := range all {
			switch {
			case late:
				err = errors.Join(err, ended(proc.Signal(pidfd, unix.SIGKILL)))
			case !asked[pid]:
				asked[pid] = true
				err = errors.Join(err, ended(proc.Signal(pidfd, unix.SIGTERM)))
			}
		}
		within, cancel := context.WithTimeout(context.Background(), pause)
		for _, pidfd := range all {
			_ = proc.Wait(within, pidfd)
			_ = pidfd.Close()
		}
		cancel()
		if err != nil {
			return err
		}
		if late && time.Since(killed) > killing {
			return refuse.Busyf("the instance of node %s does not end: %d processes of it wait in the kernel", node, len(all))
		}
	}
}

func ended(err error) error {
	if errors.Is(err, unix.ESRCH) {
		return nil
	}
	return err
}

// processes opens the processes of a node's instance, by number: those in its group that have its folder in their environment, and
// those of their sessions. Others may be there: threads of a server that was served another way before.
func (s *Server) processes(node, procs string, session int) (map[int]*os.File, error) {
	text, err := os.ReadFile(procs)
	if err != nil {
		if errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.ENODEV) {
			return nil, nil
		}
		return nil, err
	}
	all, sessions := map[int]*os.File{}, map[int]int{}
	own := []int{session}
	for line := range strings.Lines(string(text)) {
		pid, err := strconv.Atoi(strings.TrimSpace(line))
		if err != nil || pid == 0 {
			continue
		}
		id, err := proc.Of(pid)
		var pidfd *os.File
		var of int
		var environ []byte
		if err == nil {
			pidfd, err = id.Open()
		}
		if err == nil {
			all[pid] = pidfd
			of, err = unix.Getsid(pid)
		}
		if err == nil {
			environ, err = os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "environ"))
		}
		if proc.Gone(err) || err == nil && !id.Alive() {
			if pidfd != nil {
				_ = pidfd.Close()
			}
			delete(all, pid)
			continue
		}
		if err != nil { // it cannot be looked at, which does not say that it has ended
			for _, pidfd := range all {
				_ = pidfd.Close()
			}
			return nil, fmt.Errorf("look at process %d in the group of node %s: %w", pid, node, err)
		}
		sessions[pid] = of
		if slices.ContainsFunc(bytes.Split(environ, []byte{0}), func(v []byte) bool { return string(v) == dirVariable+"="+s.State(node) }) {
			own = append(own, of)
		}
	}
	for pid, pidfd := range all {
		if sessions[pid] == 0 || !slices.Contains(own, sessions[pid]) {
			_ = pidfd.Close()
			delete(all, pid)
		}
	}
	return all, nil
}

// Forget removes the folder of a node's instance.
func (s *Server) Forget(node string) error { return os.RemoveAll(filepath.Join(s.Dir, node)) }

// Last returns the last line that an instance said, in words of at most so many bytes.
func (s *Server) Last(node string) string {
	const longest = 200
	f, err := os.Open(s.Log(node))
	if err != nil {
		return ""
	}
	defer f.Close()
	text := make([]byte, 4096)
	st, err := f.Stat()
	if err != nil {
		return ""
	}
	n, _ := f.ReadAt(text, max(0, st.Size()-int64(len(text))))
	lines := strings.Split(strings.TrimSpace(string(text[:n])), "\n")
	last := strings.TrimSpace(lines[len(lines)-1])
	last = last[:min(len(last), longest)]
	return strings.Map(func(r rune) rune { // an instance's output must not control a terminal
		if unicode.IsPrint(r) && r != unicode.ReplacementChar {
			return r
		}
		return -1
	}, last)
}
