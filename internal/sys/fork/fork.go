// Package fork starts and reaps all children of this process: it gives programs their own exit status, and collects orphans
// that a subreaper inherits without taking a program's status from it.
package fork

import (
	"bytes"
	"context"
	"errors"
	"maps"
	"os"
	"os/exec"
	"os/signal"
	"sync"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// A process has one set of children, so this is one state per process.
var children = family{owned: map[int]int{}, ended: map[int]unix.WaitStatus{}}

// family tells the children that os/exec waits for from orphans, which os/exec does not know.
type family struct {
	mu       sync.Mutex
	adopts   bool                    // orphans are collected; else they are the caller's to wait for
	starting int                     // programs whose pid is not known yet
	owned    map[int]int             // by pid: programs that are waited for
	ended    map[int]unix.WaitStatus // by pid: orphans that were reaped
}

// maxEnded bounds the statuses that are kept. Only the status of a node that is about to be watched is ever asked for.
const maxEnded = 4096

// Start is cmd.Start. The caller calls Wait.
func Start(cmd *exec.Cmd) error {
	return children.start(func() (int, error) {
		if err := cmd.Start(); err != nil {
			return 0, err
		}
		return cmd.Process.Pid, nil
	})
}

// Wait is cmd.Wait for a command that Start started.
func Wait(cmd *exec.Cmd) error {
	err := cmd.Wait()
	children.waited(cmd.Process.Pid)
	return err
}

// Run is cmd.Run.
func Run(cmd *exec.Cmd) error {
	if err := Start(cmd); err != nil {
		return err
	}
	return Wait(cmd)
}

// Output is cmd.Output, without the error's Stderr.
func Output(cmd *exec.Cmd) ([]byte, error) {
	var out bytes.Buffer
	cmd.Stdout = &out
	err := Run(cmd)
	return out.Bytes(), err
}

// StartProcess is os.StartProcess. The caller calls Kill.
func StartProcess(name string, argv []string, attr *os.ProcAttr) (p *os.Process, err error) {
	err = children.start(func() (int, error) {
		if p, err = os.StartProcess(name, argv, attr); err != nil {
			return 0, err
		}
		return p.Pid, nil
	})
	return p, err
}

// Kill kills and reaps a process that StartProcess started.
func Kill(p *os.Process) {
	_ = p.Kill()
	_, _ = p.Wait()
	children.waited(p.Pid)
}

// Adopt makes this process the parent of its descendants' orphans, and reaps those that end, until ctx does.
func Adopt(ctx context.Context) error {
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return err
	}
	children.mu.Lock()
	children.adopts = true
	children.mu.Unlock()
	ends := make(chan os.Signal, 1)
	signal.Notify(ends, syscall.SIGCHLD)
	go func() {
		defer signal.Stop(ends)
		for {
			children.reap()
			select {
			case <-ctx.Done():
				return
			case <-ends:
			}
		}
	}()
	return nil
}

// Ended tells, once, how an orphan ended. ok is false if it has not ended, or was not this process's child.
func Ended(pid int) (ws unix.WaitStatus, ok bool) { return children.orphan(pid) }

// Kept returns the statuses of orphans that were not asked for yet, by pid.
func Kept() map[int]unix.WaitStatus {
	children.mu.Lock()
	defer children.mu.Unlock()
	return maps.Clone(children.ended)
}

// Remember adds statuses that an older program of this process kept.
func Remember(kept map[int]unix.WaitStatus) {
	children.mu.Lock()
	defer children.mu.Unlock()
	maps.Copy(children.ended, kept)
}

func (c *family) start(f func() (pid int, err error)) error {
	c.mu.Lock()
	c.starting++
	c.mu.Unlock()
	pid, err := f() // a start that fails has waited for its child
	c.mu.Lock()
	c.starting--
	if err == nil {
		c.owned[pid]++
	}
	c.mu.Unlock()
	c.reap()
	return err
}

func (c *family) waited(pid int) {
	c.mu.Lock()
	if c.owned[pid]--; c.owned[pid] == 0 {
		delete(c.owned, pid)
	}
	c.mu.Unlock()
	c.reap()
}

// reap collects the orphans that have ended. While a program starts, its pid is not known; and an ended program hides the
// children that ended after it. In both cases reap is called again, by start or by waited.
func (c *family) reap() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for c.adopts && c.starting == 0 {
		var info unix.Siginfo
		err := unix.Waitid(unix.P_ALL, 0, &info, unix.WEXITED|unix.WNOHANG|unix.WNOWAIT, nil)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		pid := childOf(&info)
		if err != nil || pid == 0 || c.owned[pid] > 0 {
			return
		}
		ws, ok := wait(pid)
		if !ok {
			return
		}
		if len(c.ended) >= maxEnded {
			clear(c.ended)
		}
		c.ended[pid] = ws
	}
}

func (c *family) orphan(pid int) (unix.WaitStatus, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.owned[pid] == 0 {
		if ws, ok := wait(pid); ok {
			return ws, true
		}
	}
	ws, ok := c.ended[pid]
	delete(c.ended, pid)
	return ws, ok
}

// childOf returns the pid in what waitid(2) says of a child; 0: no child has ended.
func childOf(info *unix.Siginfo) int {
	child := (*struct {
		signo, errno, code, _ int32
		pid                   int32
	})(unsafe.Pointer(info))
	return int(child.pid)
}

// wait reaps one child if it has ended.
func wait(pid int) (ws unix.WaitStatus, ok bool) {
	for {
		got, err := unix.Wait4(pid, &ws, unix.WNOHANG, nil)
		if !errors.Is(err, unix.EINTR) {
			return ws, err == nil && got == pid
		}
	}
}
