package machine

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"berth/internal/runner"
	"berth/internal/spec/envfile"
	"berth/internal/sys/fork"
	"berth/internal/sys/refuse"
	"berth/internal/sys/seccomp"
	"berth/internal/sys/thread"
)

// The exit statuses of a machine whose guest ended without its command's.
const (
	exitPowerOff = 0
	exitReset    = 1
	exitPanic    = 134
)

// monitor makes the machine and stays with it: this process is the monitor, process 1 of its PID namespace. It returns the machine's
// exit status when that has ended.
func (l *Launch) monitor() (code int, err error) {
	signal.Ignore(unix.SIGINT, unix.SIGTERM, unix.SIGHUP, unix.SIGQUIT, unix.SIGPIPE)
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
		return 0, err
	}
	secrets, err := envfile.Secret(l.EnvFrom)
	if err != nil {
		return 0, err
	}
	l.Setup.Command.Env = runner.MergeEnv(l.Setup.Command.Env, secrets)
	if err := l.checkSetup(); err != nil {
		return 0, err
	}
	image, err := l.Image.Open()
	if err != nil {
		return 0, err
	}
	drives, err := l.openDrives()
	if err != nil {
		return 0, err
	}
	files := []*os.File{image}
	for _, d := range drives {
		files = append(files, d.files...)
	}
	for _, a := range l.Machine.Adapters {
		tap, err := openTap(a.Tap)
		if err != nil {
			return 0, err
		}
		files = append(files, tap)
	}
	listener, err := listen(l.Dir)
	if err != nil {
		return 0, err
	}
	daemon, err := l.readDaemon()
	if err != nil {
		return 0, err
	}
	if err := l.enterRoot(daemon); err != nil {
		return 0, err
	}
	if err := unix.Sethostname([]byte("machine")); err != nil {
		return 0, err
	}
	m := &monitor{launch: l, console: os.Stderr}
	if l.Setup.Command.Terminal != nil {
		if err := unix.SetNonblock(sizesFD, true); err != nil {
			return 0, err
		}
		m.sizes = os.NewFile(sizesFD, "sizes")
	} else {
		unix.Close(sizesFD)
	}
	lines, err := m.startShares()
	if err != nil {
		return 0, err
	}
	files = append(files, lines...)
	if err := m.startEmulator(drives, files); err != nil {
		return 0, err
	}
	closeAll(files)
	if m.qmp, err = openQMP(m.lines[0]); err != nil {
		_ = m.emulator.Process.Kill()
		_ = fork.Wait(m.emulator)
		return 0, fmt.Errorf("start QEMU: %w%s%s", err, m.complaint.after(": "), m.endShares())
	}
	if err := emptyRoot(); err != nil {
		return 0, err
	}
	if err := l.dropRights(); err != nil {
		return 0, err
	}
	sendReport(report{Ready: true})
	for fd := launchFD; fd <= lineFD; fd++ {
		unix.Close(fd)
	}
	if err := (seccomp.Filter{}).Process(); err != nil {
		return 0, err
	}
	return m.run(listener), nil
}

// listen makes the socket by which root reaches the monitor.
func listen(dir string) (*net.UnixListener, error) {
	d, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	defer d.Close()
	at := controlSocket(fmt.Sprintf("/proc/self/fd/%d", d.Fd())) // a socket's name has at most 107 bytes
	old := unix.Umask(0o177)
	defer unix.Umask(old)
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: at, Net: "unix"})
	if err != nil {
		return nil, fmt.Errorf("make the machine's socket: %w", err)
	}
	l.SetUnlinkOnClose(false)
	return l, nil
}

// monitor is a machine that runs.
type monitor struct {
	launch   *Launch
	emulator *exec.Cmd
	lines    [3]net.Conn // to QEMU's protocol, to the guest's program, from its console
	qmp      *qmp
	console  *os.File
	sizes    *os.File // of the user's terminal; nil: the node has none
	relay    *relay
	shares   []*share

	resizing struct {
		sync.Mutex
		end context.CancelCauseFunc // of the wait for what the guest was asked for last; nil: it was asked for nothing yet
	}
	complaint tail // of QEMU: what it wrote to its standard error
	words     tail // of the guest's console
}

// mostWords is how much of what QEMU or a guest's console said last is kept, in bytes.
const mostWords = 2000

// tail keeps the last of what is written to it.
type tail struct {
	mu   sync.Mutex
	text []byte
}

func (t *tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.text = append(t.text, p...)
	t.text = t.text[max(0, len(t.text)-mostWords):]
	return len(p), nil
}

// after is what was kept, after a title, for a sentence that goes on; "" if nothing was.
func (t *tail) after(title string) string {
	t.mu.Lock()
	defer t.mu.Unlock()
	if said := strings.TrimSpace(string(t.text)); said != "" {
		return title + said
	}
	return ""
}

// openTap makes a tap in the monitor's network namespace and opens it. It is there for as long as somebody has it open.
func openTap(name string) (*os.File, error) {
	f, err := os.OpenFile("/dev/net/tun", os.O_RDWR, 0)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENODEV) {
		return nil, refuse.Cannotf("modprobe tun", "the machine's interfaces need the kernel's driver tun: %w", err)
	}
	if err != nil {
		return nil, fmt.Errorf("make the machine's interfaces: %w", err)
	}
	r, err := unix.NewIfreq(name)
	if err == nil {
		r.SetUint16(unix.IFF_TAP | unix.IFF_NO_PI | unix.IFF_VNET_HDR)
		err = unix.IoctlIfreq(int(f.Fd()), unix.TUNSETIFF, r)
	}
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("make %s for the machine's interfaces: %w", name, err)
	}
	return f, nil
}

// startEmulator starts QEMU as a user of the node's range, with its descriptors and these files, and no others: the image's, those of
// the drives, the taps, and the lines to the daemons of shares.
func (m *monitor) startEmulator(drives []drive, files []*os.File) error {
	var theirs []*os.File
	defer func() {
		for _, f := range theirs {
			f.Close()
		}
	}()
	for i := range m.lines {
		pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return fmt.Errorf("make a line to QEMU: %w", err)
		}
		theirs = append(theirs, os.NewFile(uintptr(pair[1]), "line"))
		ours := os.NewFile(uintptr(pair[0]), "line")
		m.lines[i], err = net.FileConn(ours)
		ours.Close()
		if err != nil {
			return fmt.Errorf("make a line to QEMU: %w", err)
		}
	}
	null, err := nullDevice()
	if err != nil {
		return err
	}
	defer null.Close()
	id := m.launch.IDs + emulatorUser
	m.emulator = &exec.Cmd{
		Path: m.launch.Emulator.Path, Args: append([]string{Program}, m.launch.arguments(drives)...), Env: []string{"PATH=/usr/bin:/bin"}, Dir: "/",
		Stdin: null, Stdout: null, Stderr: &m.complaint, ExtraFiles: slices.Concat(theirs, files),
		SysProcAttr: &syscall.SysProcAttr{Setsid: true, Credential: &syscall.Credential{Uid: id, Gid: id}},
	}
	return thread.Own(func() error { // what this thread gives up, QEMU lacks too
		if err := errors.Join(leaveKeyring(), unix.Unshare(unix.CLONE_NEWNET), closeRights(), seccomp.Filter{Start: true}.Thread()); err != nil { // its own filter has no start
			return err
		}
		return fork.Start(m.emulator)
	})
}

// nullDevice is a pipe-like nothing in a root that has no /dev: an empty file in memory.
func nullDevice() (*os.File, error) { return memory(nil) }

// leaveKeyring gives the calling thread, and what it starts, an own empty session keyring: setuid and exec leave it the caller's, with
// tickets of Kerberos and keys of file systems. Where the kernel has no keys, or lets nobody at them, there is none to leave.
func leaveKeyring() error {
	_, err := unix.KeyctlInt(unix.KEYCTL_JOIN_SESSION_KEYRING, 0, 0, 0, 0)
	if err != nil && !errors.Is(err, unix.ENOSYS) && !errors.Is(err, unix.EPERM) {
		return fmt.Errorf("leave the caller's keys: %w", err)
	}
	return nil
}

// closeRights lets the calling thread, and what it starts, never have rights again that it has not.
func closeRights() error {
	for c := 0; ; c++ {
		if err := unix.Prctl(unix.PR_CAPBSET_DROP, uintptr(c), 0, 0, 0); errors.Is(err, unix.EINVAL) {
			break
		} else if err != nil {
			return fmt.Errorf("drop capability %d: %w", c, err)
		}
	}
	if err := noDump(); err != nil {
		return err
	}
	return unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
}

// noDump keeps what this process starts, and itself, from writing its memory, which is the guest's, to a file when it crashes.
func noDump() error {
	none := unix.Rlimit{}
	if err := unix.Setrlimit(unix.RLIMIT_CORE, &none); err != nil {
		return fmt.Errorf("keep the guest's memory from being dumped: %w", err)
	}
	return nil
}

// dropRights makes the monitor a user of the node's range without capabilities, all its threads.
func (l *Launch) dropRights() error {
	id := int(l.IDs + monitorUser)
	if err := errors.Join(syscall.Setgroups(nil), syscall.Setresgid(id, id, id), syscall.Setresuid(id, id, id)); err != nil {
		return fmt.Errorf("become user %d: %w", id, err)
	}
	return unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0)
}

// run serves the machine until it ends, and returns its exit status.
func (m *monitor) run(listener *net.UnixListener) int {
	m.relay = newRelay(m)
	said := make(chan struct{})
	go func() { m.copyConsole(); close(said) }()
	go m.relay.accept(listener)
	ended := make(chan struct{})
	go func() {
		_ = fork.Wait(m.emulator)
		close(ended)
	}()
	lost := m.watchShares(ended)
	select {
	case code := <-m.relay.ended: // the node's command has ended
		m.quit(ended)
		return code
	case <-lost: // the kernel kills what is left when this process ends
		select {
		case code := <-m.relay.ended: // at the same time
			return code
		default:
		}
		return 128 + int(unix.SIGKILL)
	case <-ended:
	}
	<-m.qmp.ended
	<-m.relay.broken // all that the guest said is read
	select {
	case <-said:
	case <-time.After(quitTime): // nobody takes the console's last words
	}
	if code, told := m.relay.lastWord(); told {
		return code
	}
	return m.exitStatus()
}

// exitStatus is the status of a machine whose emulator ended by itself, or was killed.
func (m *monitor) exitStatus() int {
	if said := m.complaint.after("berth: QEMU says: "); said != "" {
		fmt.Fprintln(m.console, said)
	}
	ws, ok := m.emulator.ProcessState.Sys().(syscall.WaitStatus)
	switch {
	case !ok:
		return exitReset
	case ws.Signaled():
		return 128 + int(ws.Signal())
	case ws.ExitStatus() != 0:
		return ws.ExitStatus()
	}
	switch m.qmp.reason {
	case "guest-shutdown":
		return exitPowerOff
	case "guest-panic":
		return exitPanic
	}
	return exitReset
}

// quitTime is how long QEMU may take to quit.
const quitTime = 2 * time.Second

// quit asks QEMU to end. One that does not is killed by the kernel, when the monitor ends.
func (m *monitor) quit(ended chan struct{}) {
	_ = m.lines[0].SetWriteDeadline(time.Now().Add(quitTime))
	_, _ = m.lines[0].Write([]byte(`{"execute":"quit"}` + "\n"))
	select {
	case <-ended:
	case <-time.After(quitTime):
	}
}

// copyConsole writes what the guest says on its console to the node's standard error.
func (m *monitor) copyConsole() {
	b := make([]byte, 4096)
	for {
		n, err := m.lines[2].Read(b)
		if n > 0 {
			_, _ = m.words.Write(b[:n])
			_, _ = m.console.Write(b[:n]) // without a reader it is lost
		}
		if err != nil {
			return
		}
	}
}
