package gate

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"berth/internal/sys/fork"
	"berth/internal/sys/proc"
)

// GuardCommand is the argument with which the program of [Server.Guard] is [Guard].
const GuardCommand = "guard"

// most is how long the guard tries to continue stopped processes.
const most = 2 * time.Second

// Files that the guard gets from the agent.
const (
	agentFile   = 3 // a pidfd of the agent
	stoppedFile = 4 // the map of stopped processes
)

// Guard is the process that continues stopped processes when the agent dies, however it does: it waits for the agent's end, which
// is after the kernel took the gate out, continues the processes of the map, and ends. It holds nothing that could stop a process.
func Guard(ready io.Writer) error {
	signal.Ignore(syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP, syscall.SIGQUIT) // signals that end the agent do not end it
	_ = os.WriteFile("/proc/self/oom_score_adj", []byte("-1000"), 0)                // where memory is short, others end first; a container may forbid it
	stopped, err := ebpf.NewMapFromFD(stoppedFile)
	if err != nil {
		return fmt.Errorf("open the map of stopped processes: %w", err)
	}
	defer stopped.Close()
	if _, err := fmt.Fprintln(ready, "ready"); err != nil {
		return err
	}
	for {
		_, err := unix.Poll([]unix.PollFd{{Fd: agentFile, Events: unix.POLLIN}}, -1)
		if err == nil {
			return sweeps(stopped, most)
		}
		if !errors.Is(err, unix.EINTR) {
			return errors.Join(fmt.Errorf("wait for the agent's end: %w", err), sweeps(stopped, most))
		}
	}
}

// sweeps continues stopped processes, once the gate stops no more of them. A program that was in the middle of it when the gate was taken
// out noted a process and stopped it after that, so each is continued several times, for some time; SIGCONT does nothing to one that
// runs. One that was found stopped is continued once: the next agent may have stopped it since. A process that cannot be continued is
// tried for longer.
func sweeps(stopped *ebpf.Map, least time.Duration) error {
	began, done := time.Now(), map[uint32]stop{}
	for {
		err := sweep(stopped, done)
		if took := time.Since(began); took >= most || took >= least && err == nil {
			return err
		}
		time.Sleep(20 * time.Millisecond)
	}
}

func sweep(stopped *ebpf.Map, done map[uint32]stop) error {
	var pid uint32
	var s stop
	var errs []error
	all := stopped.Iterate()
	for all.Next(&pid, &s) {
		if done[pid] == s {
			continue
		}
		found, _ := proc.Read(int(pid))
		err := proceed(s.id(pid))
		if err == nil && found.State == 'T' {
			done[pid] = s
		}
		errs = append(errs, err)
	}
	return errors.Join(append(errs, all.Err())...)
}

// proceed continues a process, if it is still that one. No error: also if it has ended.
func proceed(id proc.ID) error {
	p, err := id.Open()
	if err == nil {
		defer p.Close()
		err = proc.Signal(p, unix.SIGCONT)
	} else if now, bad := proc.Of(id.PID); bad == nil && now == id { // there is no pidfd, and it is that one
		err = unix.Kill(id.PID, unix.SIGCONT)
	}
	if err != nil && !gone(id) {
		return fmt.Errorf("continue process %d: %w", id.PID, err)
	}
	return nil
}

// gone is whether a process has ended for certain: one that cannot be looked at has not.
func gone(id proc.ID) bool {
	if errors.Is(unix.Kill(id.PID, 0), unix.ESRCH) {
		return true
	}
	now, err := proc.Of(id.PID)
	return err == nil && now != id
}

// guard is the agent's side of it.
type guard struct {
	path   string
	mu     sync.Mutex
	cmd    *exec.Cmd
	ended  chan struct{}
	closed bool
}

// start starts a guard, and another one whenever it ends; each time it calls again with the error of that.
func (w *guard) start(stopped *ebpf.Map, again func(error)) error {
	cmd, err := startGuard(w.path, stopped)
	if err != nil {
		return err
	}
	ended, began := make(chan struct{}), time.Now()
	w.cmd, w.ended = cmd, ended
	go func() {
		_ = fork.Wait(cmd)
		close(ended)
		time.Sleep(time.Second - time.Since(began)) // at least a second between two
		w.mu.Lock()
		defer w.mu.Unlock()
		if !w.closed {
			again(w.start(stopped, again))
		}
	}()
	return nil
}

// startGuard starts a guard and returns when it waits for the end of this process.
func startGuard(path string, stopped *ebpf.Map) (*exec.Cmd, error) {
	self, err := unix.PidfdOpen(os.Getpid(), 0)
	if err != nil {
		return nil, fmt.Errorf("open this process: %w", err)
	}
	agent := os.NewFile(uintptr(self), "agent")
	defer agent.Close()
	fd, err := unix.FcntlInt(uintptr(stopped.FD()), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("open the map of stopped processes: %w", err)
	}
	table := os.NewFile(uintptr(fd), "stopped")
	defer table.Close()
	out, in, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer out.Close()
	cmd := exec.Command(path, GuardCommand)
	cmd.Dir, cmd.Env, cmd.Stdout = "/", []string{"GOMAXPROCS=1"}, in
	cmd.ExtraFiles = []*os.File{agent, table}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	err = fork.Start(cmd)
	_ = in.Close()
	if err != nil {
		return nil, fmt.Errorf("start the guard of stopped processes: %w", err)
	}
	_ = out.SetReadDeadline(time.Now().Add(10 * time.Second))
	if _, err := out.Read(make([]byte, 1)); err != nil {
		return nil, errors.Join(fmt.Errorf("the guard of stopped processes does not answer: %w", err), cmd.Process.Kill(), fork.Wait(cmd))
	}
	return cmd, nil
}

// last makes the guard the last one: no other takes its place.
func (w *guard) last() (cmd *exec.Cmd, ended chan struct{}) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.closed = true
	return w.cmd, w.ended
}

// end ends the guard: nothing is stopped any more.
func (w *guard) end() error {
	cmd, ended := w.last()
	if cmd == nil {
		return nil
	}
	if err := cmd.Process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("end the guard of stopped processes: %w", err)
	}
	<-ended
	return nil
}

// note writes down that a process is stopped: the next agent continues it, if both this one and the guard are killed.
func note(dir string, id proc.ID) error {
	return os.WriteFile(filepath.Join(dir, strconv.Itoa(id.PID)), []byte(strconv.FormatUint(id.Start, 10)), 0o600)
}

func unnote(dir string, id proc.ID) error {
	if err := os.Remove(filepath.Join(dir, strconv.Itoa(id.PID))); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// notes is where in [Server.Dir] the processes are noted that are stopped.
func notes(dir string) string { return filepath.Join(dir, "stopped") }

// Resume continues processes that an earlier agent left stopped. dir is [Server.Dir].
func Resume(dir string) error { return resume(notes(dir)) }

// resume continues the processes that a folder names, and empties it. Processes that cannot be continued stay noted.
func resume(dir string) error {
	all, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	var errs []error
	for _, e := range all {
		path := filepath.Join(dir, e.Name())
		pid, bad := strconv.Atoi(e.Name())
		text, err := os.ReadFile(path)
		if start, none := strconv.ParseUint(string(text), 10, 64); err == nil && none == nil && bad == nil {
			err = proceed(proc.ID{PID: pid, Start: start})
		}
		if err == nil {
			err = os.Remove(path)
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}
