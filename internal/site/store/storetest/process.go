package storetest

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"berth/internal/site/store"
	"berth/test/testkit"
)

// Process is a server in a process of its own, which a test stops and kills.
type Process struct {
	args []string
	env  []string
	cmd  *exec.Cmd
	said *bytes.Buffer
}

// Start starts a server, which ends with the test.
func Start(t *testing.T, env []string, args ...string) *Process {
	t.Helper()
	p := &Process{args: args, env: env}
	p.start(t)
	t.Cleanup(func() {
		p.end()
		if t.Failed() {
			t.Logf("%v said:\n%.4000s", args, p.said)
		}
	})
	return p
}

func (p *Process) start(t *testing.T) {
	t.Helper()
	p.said = &bytes.Buffer{}
	p.cmd = exec.Command(p.args[0], p.args[1:]...)
	p.cmd.Env = append(os.Environ(), p.env...)
	p.cmd.Stdout, p.cmd.Stderr = p.said, p.said
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
}

// PID returns the server's process.
func (p *Process) PID() int { return p.cmd.Process.Pid }

func (p *Process) end() {
	_ = p.cmd.Process.Kill()
	_ = p.cmd.Wait()
}

// Kill ends the server without warning. It returns the function that starts it again.
func (p *Process) Kill(t *testing.T) (again func()) {
	t.Helper()
	p.end()
	return func() { p.start(t) }
}

// Away stops the server. It returns the function that continues it.
func (p *Process) Away(t *testing.T) (back func()) {
	t.Helper()
	if err := p.cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, "the server stops", p.stopped) // each thread stops when it notices
	return func() { _ = p.cmd.Process.Signal(syscall.SIGCONT) }
}

// stopped reports whether all threads of the server have stopped.
func (p *Process) stopped() bool {
	threads, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", p.cmd.Process.Pid))
	for _, path := range threads {
		text, _ := os.ReadFile(path) // of a thread that has ended: nothing
		if _, state, _ := bytes.Cut(text, []byte(") ")); len(state) > 0 && state[0] != 'T' {
			return false
		}
	}
	return len(threads) > 0
}

// Expire stops the server until a session must have ended.
func (p *Process) Expire(t *testing.T, _ store.Store, ttl time.Duration) {
	t.Helper()
	back := p.Away(t)
	time.Sleep(2 * ttl)
	back()
}

// Etcd starts an etcd of one member on the loopback, and returns its endpoint.
func Etcd(t *testing.T, program string) (p *Process, endpoint string) {
	t.Helper()
	free := testkit.Free(t, 2)
	endpoint, peers := "http://"+free[0], "http://"+free[1]
	p = Start(t, nil, program, "--name", "t", "--data-dir", filepath.Join(t.TempDir(), "data"),
		"--listen-client-urls", endpoint, "--advertise-client-urls", endpoint,
		"--listen-peer-urls", peers, "--initial-advertise-peer-urls", peers, "--initial-cluster", "t="+peers, "--log-level", "error")
	return p, endpoint
}

// Ready waits until a server answers.
func Ready(t *testing.T, s store.Store) {
	t.Helper()
	testkit.Eventually(t, "the server answers", func() bool {
		_, _, err := s.List(t.Context(), "/t/none")
		return err == nil
	})
}
