package server

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"berth/internal/host"
	"berth/internal/host/group"
	"berth/internal/site/api"
	"berth/internal/site/upload"
	"berth/internal/sys/fork"
)

// child is a command of berth that runs for a client.
type child struct {
	cmd      *exec.Cmd
	in       *os.File
	out, err *os.File // err is nil where both are the terminal
	terminal *os.File // its side of a terminal; nil: there is none
	ended    chan struct{}
	code     int
	gone     atomic.Bool
}

// agentEndSignal is the signal that the kernel sends to the agent's commands for clients when the agent ends. The clients lose
// their connections then, so the commands end as they do by hand.
const agentEndSignal = unix.SIGTERM

// proxies are the variables that say by which proxy programs of a host reach the Internet. The commands for clients have those of the agent, so
// that berth --host H image pull fetches as berth image pull does on H. What hosts of a site say to each other goes direct, whatever they say: agents
// and their clients make connections of their own, and the client of the cluster state is told so (package etcd).
var proxies = []string{"HTTPS_PROXY", "HTTP_PROXY", "NO_PROXY", "https_proxy", "http_proxy", "no_proxy"}

// run starts a command of berth.
func run(program []string, args []string, s api.Start) (*child, error) {
	c := &child{ended: make(chan struct{})}
	cmd := exec.Command(program[0], append(append([]string{}, program[1:]...), args...)...) //nolint:gosec,noctx // arguments are checked; it ends by signals
	cmd.Dir = "/"
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=/root"}
	for _, name := range proxies {
		if value := os.Getenv(name); value != "" {
			cmd.Env = append(cmd.Env, name+"="+value)
		}
	}
	if s.Term != "" {
		cmd.Env = append(cmd.Env, "TERM="+s.Term)
	}
	if s.NoColor {
		cmd.Env = append(cmd.Env, "NO_COLOR=1")
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Pdeathsig: agentEndSignal}
	c.cmd = cmd
	theirs, err := c.streams(s)
	if err == nil {
		var env string
		cmd.ExtraFiles, env, err = pack(s.Files)
		theirs = append(theirs, cmd.ExtraFiles...)
		if env != "" {
			cmd.Env = append(cmd.Env, env)
		}
	}
	started := make(chan error, 1)
	if err == nil {
		go c.hold(started)
		err = <-started
	}
	for _, f := range theirs {
		f.Close()
	}
	if err != nil {
		c.close()
		return nil, fmt.Errorf("start %s: %w", program[0], err)
	}
	return c, nil
}

// hold starts the command and waits for it in one thread: the kernel takes the end of the thread that started it for its parent's. The
// command is in none of the agent's groups: where the agent is at its limit of memory, the kernel ends no command.
func (c *child) hold(started chan<- error) {
	runtime.LockOSThread() // the thread ends with this function
	h, err := host.ReadMounted()
	if err == nil {
		err = group.StartOutside(h, c.cmd)
	}
	started <- err
	if err != nil {
		return
	}
	err = fork.Wait(c.cmd)
	c.gone.Store(true)
	state := c.cmd.ProcessState
	if ws, ok := state.Sys().(syscall.WaitStatus); ok && ws.Signaled() {
		c.code = 128 + int(ws.Signal())
	} else if c.code = state.ExitCode(); c.code < 0 || err != nil && c.code == 0 {
		c.code = 1
	}
	close(c.ended)
	c.wake()
}

// streams makes the command's standard streams, and returns its sides of them.
func (c *child) streams(s api.Start) (theirs []*os.File, err error) {
	var slave *os.File
	if s.Terminals != [3]bool{} {
		if c.terminal, slave, err = openTerminal(s.Rows, s.Columns); err != nil {
			return nil, err
		}
		theirs = append(theirs, slave)
		c.cmd.SysProcAttr.Setctty = true
		for i, is := range s.Terminals {
			if is {
				c.cmd.SysProcAttr.Ctty = i
			}
		}
	}
	pipe := func(read bool) (ours, their *os.File, err error) {
		r, w, err := os.Pipe()
		if read {
			return w, r, err
		}
		return r, w, err
	}
	side := [3]*os.File{}
	for i, ours := range []**os.File{&c.in, &c.out, &c.err} {
		if s.Terminals[i] {
			side[i] = slave
			continue
		}
		if *ours, side[i], err = pipe(i == api.Stdin); err != nil {
			return theirs, err
		}
		theirs = append(theirs, side[i])
	}
	c.cmd.Stdin, c.cmd.Stdout, c.cmd.Stderr = side[0], side[1], side[2]
	return theirs, nil
}

// openTerminal opens a new terminal: the agent's side and the command's.
func openTerminal(rows, columns uint16) (master, slave *os.File, err error) {
	m, err := unix.Open("/dev/ptmx", unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("open a terminal: %w", err)
	}
	master = os.NewFile(uintptr(m), "/dev/ptmx")
	err = unix.IoctlSetPointerInt(m, unix.TIOCSPTLCK, 0)
	if err == nil && rows > 0 && columns > 0 {
		err = unix.IoctlSetWinsize(m, unix.TIOCSWINSZ, &unix.Winsize{Row: rows, Col: columns})
	}
	var n int
	if err == nil {
		n, err = unix.IoctlGetInt(m, unix.TIOCGPTN)
	}
	if err == nil {
		slave, err = os.OpenFile("/dev/pts/"+strconv.Itoa(n), os.O_RDWR|unix.O_NOCTTY, 0)
	}
	if err != nil {
		master.Close()
		return nil, nil, fmt.Errorf("open a terminal: %w", err)
	}
	return master, slave, nil
}

// signal sends the command a signal, while it is there.
func (c *child) signal(name string) {
	sig := unix.SignalNum(name)
	switch sig {
	case unix.SIGHUP, unix.SIGINT, unix.SIGQUIT, unix.SIGTERM, unix.SIGUSR1, unix.SIGUSR2, unix.SIGALRM:
		_ = c.cmd.Process.Signal(sig) // it may have ended
	}
}

// resize gives the command's terminal another size.
func (c *child) resize(rows, columns uint16) {
	if c.terminal == nil || rows == 0 || columns == 0 {
		return
	}
	raw, err := c.terminal.SyscallConn()
	if err == nil {
		_ = raw.Control(func(fd uintptr) {
			_ = unix.IoctlSetWinsize(int(fd), unix.TIOCSWINSZ, &unix.Winsize{Row: rows, Col: columns})
		})
	}
}

// abandonAfter is how long a command may take to end after its client is gone.
const abandonAfter = 10 * time.Second

// abandon ends a command whose client is gone: asked first, as by hand, then killed. berth run's node ends with it.
func (c *child) abandon() {
	if c.gone.Load() {
		return
	}
	_ = c.cmd.Process.Signal(unix.SIGTERM)
	if c.terminal != nil {
		_ = c.cmd.Process.Signal(unix.SIGHUP)
	}
	select {
	case <-c.ended:
	case <-time.After(abandonAfter):
		_ = c.cmd.Process.Kill()
		<-c.ended
	}
}

// close closes the agent's sides of the streams.
func (c *child) close() {
	for _, f := range []*os.File{c.in, c.out, c.err, c.terminal} {
		if f != nil {
			f.Close()
		}
	}
}

// stdin is where the command's input is written.
func (c *child) stdin() *os.File {
	if c.in == nil {
		return c.terminal
	}
	return c.in
}

// lingers is how long a process that has the command's output open, and has outlived it, is listened to.
const lingers = time.Second

// read reads the output of the command. After the command's end it reads the rest, and does not wait for other processes that
// have the stream open.
func (c *child) read(from *os.File, p []byte) (int, error) {
	for late := false; ; late = true {
		if c.gone.Load() {
			_ = from.SetReadDeadline(time.Now().Add(lingers))
		}
		n, err := from.Read(p)
		if n > 0 || !errors.Is(err, os.ErrDeadlineExceeded) || late {
			return n, err // EIO: a terminal that no process has open any more
		}
	}
}

// wake lets read notice that the command has ended.
func (c *child) wake() {
	for _, f := range []*os.File{c.out, c.err, c.terminal} {
		if f != nil {
			_ = f.SetReadDeadline(time.Now())
		}
	}
}

// pack puts the client's files into memory for the command.
func pack(all []api.File) (files []*os.File, variable string, err error) {
	var told []upload.File
	for _, f := range all {
		t := upload.File{Name: f.Name, Dir: f.Dir, Errno: f.Errno}
		if f.Errno == 0 {
			fd, err := unix.MemfdCreate("berth-sent", unix.MFD_CLOEXEC)
			if err != nil {
				return files, "", fmt.Errorf("keep a file of the client's: %w", err)
			}
			file := os.NewFile(uintptr(fd), f.Name)
			t.FD = 3 + len(files)
			files = append(files, file)
			if _, err := file.Write(f.Content); err != nil {
				return files, "", fmt.Errorf("keep a file of the client's: %w", err)
			}
		}
		told = append(told, t)
	}
	if len(told) == 0 {
		return nil, "", nil
	}
	variable, err = upload.Marshal(told)
	return files, variable, err
}
