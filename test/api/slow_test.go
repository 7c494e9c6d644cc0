package api

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"berth/internal/site/api"
	"berth/internal/site/api/client"
	"berth/internal/site/api/server"
	"berth/internal/site/audit"
	"berth/test/testkit"
)

// relayed is a host that runs shell scripts where an agent runs berth, and what its audit says.
type relayed struct {
	server.Host
	socket string

	mu    sync.Mutex
	lines []audit.Line
}

// Program implements server.Host.
func (r *relayed) Program() []string { return []string{"/bin/sh", "-c"} }

func (r *relayed) keep(line audit.Line, err error) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if err != nil {
		line.Error = err.Error()
	}
	r.lines = append(r.lines, line)
	return nil
}

// ended waits for the line of the command's end.
func (r *relayed) ended(t *testing.T) (last audit.Line) {
	t.Helper()
	testkit.Eventually(t, "the command has ended", func() bool {
		r.mu.Lock()
		defer r.mu.Unlock()
		if len(r.lines) == 2 {
			last = r.lines[1]
		}
		return len(r.lines) == 2
	})
	return last
}

func relays(t *testing.T) *relayed {
	t.Helper()
	r := &relayed{socket: filepath.Join(t.TempDir(), "s")}
	l, err := net.Listen("unix", r.socket)
	if err != nil {
		t.Fatal(err)
	}
	h := server.HTTP((&server.Server{Host: r, Audit: r.keep}).Handler())
	go func() { _ = h.Serve(l) }()
	t.Cleanup(func() { _ = h.Close() })
	return r
}

// command runs a script by the agent, and returns its exit code.
func (r *relayed) command(ctx context.Context, in *os.File, out io.Writer, script string) (int, error) {
	c, err := client.New("unix:"+r.socket, nil)
	if err != nil {
		return 0, err
	}
	return c.Command(ctx, "/v1/command", api.Start{Args: []string{script}}, client.Streams{In: in, Out: out, Err: io.Discard})
}

// held is a reader who takes nothing before he is let go on.
type held struct {
	io.Writer
	on chan struct{}
}

func (h *held) Write(p []byte) (int, error) {
	<-h.on
	return h.Writer.Write(p)
}

// TestHeldBack: a command whose output nobody takes gets all of its input meanwhile, and hears signals; when the reader goes on,
// every byte comes, and the exit code.
func TestHeldBack(t *testing.T) {
	const size = 4 << 20
	r := relays(t)
	dir := t.TempDir()
	input := filepath.Join(dir, "input")
	if err := os.WriteFile(input, bytes.Repeat([]byte("berth"), size/5), 0o600); err != nil {
		t.Fatal(err)
	}
	in, err := os.Open(input)
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	var got bytes.Buffer
	out := &held{&got, make(chan struct{})}
	type end struct {
		code int
		err  error
	}
	ends := make(chan end, 1)
	go func() {
		code, err := r.command(context.Background(), in, out, fmt.Sprintf("exec 3<&0; head -c %d /dev/zero & cat <&3 >%s/some && mv %[2]s/some %[2]s/taken; wait $!; exit 7", size, dir))
		ends <- end{code, err}
	}()
	taken := filepath.Join(dir, "taken")
	testkit.Eventually(t, "the command has its input, while its output is held back", func() bool { _, err := os.Stat(taken); return err == nil })
	if info, err := os.Stat(taken); err != nil || info.Size() != size/5*5 {
		t.Errorf("of %d bytes of input it has %v, %v", size/5*5, info.Size(), err)
	}
	close(out.on)
	e := <-ends
	if got.Len() != size || e.code != 7 || e.err != nil {
		t.Errorf("of %d bytes %d came, exit code %d, %v", size, got.Len(), e.code, e.err)
	}
	if last := r.ended(t); last.Exit == nil || *last.Exit != 7 {
		t.Errorf("the audit has %+v", last)
	}
}

// TestInputFails: a command whose input cannot be read to its end does not take what came for all of it, and its caller and the audit know it. Where
// there is nothing to read, it has no input.
func TestInputFails(t *testing.T) {
	dir := t.TempDir()
	some := filepath.Join(dir, "some")
	script := fmt.Sprintf("cat >%s && mv %[1]s %s/taken", some, dir)
	for _, tc := range []struct {
		what  string
		open  func() (*os.File, error)
		fails bool
	}{
		{"a pipe that fails in the middle", func() (*os.File, error) {
			in, writer, err := os.Pipe()
			if err != nil {
				return nil, err
			}
			t.Cleanup(func() { writer.Close() })
			if _, err := writer.WriteString("the first half"); err != nil {
				return nil, err
			}
			go func() {
				for ; t.Context().Err() == nil; time.Sleep(time.Millisecond) {
					if text, err := os.ReadFile(some); err == nil && len(text) > 0 {
						_ = in.SetReadDeadline(time.Now())
						return
					}
				}
			}()
			return in, nil
		}, true},
		{"a folder", func() (*os.File, error) { return os.Open(dir) }, true},
		{"a null device as nohup gives it", func() (*os.File, error) { return os.OpenFile(os.DevNull, os.O_WRONLY, 0) }, false},
	} {
		r := relays(t)
		in, err := tc.open()
		if err != nil {
			t.Fatal(err)
		}
		defer in.Close()
		_, err = r.command(t.Context(), in, io.Discard, script)
		if tc.fails != (err != nil && strings.Contains(err.Error(), "standard input")) {
			t.Errorf("%s: %v", tc.what, err)
		}
		if last := r.ended(t); tc.fails != (last.Error != "") {
			t.Errorf("%s: the audit has %+v", tc.what, last)
		}
		if _, err := os.Stat(filepath.Join(dir, "taken")); tc.fails != errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s: what the command takes for the whole: %v", tc.what, err)
		}
	}
}

// TestDyingReader: a client whose reader is gone says so, and the command and the audit know it, too.
func TestDyingReader(t *testing.T) {
	r := relays(t)
	null, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	reader, out, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	pid := filepath.Join(t.TempDir(), "pid")
	ends := make(chan error, 1)
	go func() {
		_, err := r.command(context.Background(), null, out, "echo $$ >"+pid+"; exec cat /dev/zero")
		ends <- err
	}()
	if _, err := io.ReadFull(reader, make([]byte, 1<<20)); err != nil {
		t.Fatal(err)
	}
	reader.Close()
	if err := <-ends; !errors.Is(err, syscall.EPIPE) {
		t.Errorf("the client says %v", err)
	}
	if last := r.ended(t); last.Exit != nil || !strings.Contains(last.Error, "is gone") {
		t.Errorf("the audit has %+v", last)
	}
	text, err := os.ReadFile(pid)
	if err != nil {
		t.Fatal(err)
	}
	n, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(n, 0); !errors.Is(err, syscall.ESRCH) {
		t.Errorf("the command is there: %v", err)
	}
}

// paused is a remote command of the real programs, whose client is stopped behind the first bytes of output.
type paused struct {
	cmd *exec.Cmd
	out io.ReadCloser
	got int // bytes of output
}

// pause runs a command line by the agent with so much input, reads some of its output and stops the client.
func (s *site) pause(t *testing.T, input int, args ...string) *paused {
	t.Helper()
	p := &paused{cmd: exec.Command(s.Program, append([]string{"--host", "unix:" + s.socket}, args...)...)}
	p.cmd.Stdin, p.cmd.Stderr = bytes.NewReader(make([]byte, input)), os.Stderr
	var err error
	if p.out, err = p.cmd.StdoutPipe(); err == nil {
		err = p.cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if p.cmd.ProcessState == nil {
			_ = p.cmd.Process.Kill()
			_ = p.cmd.Wait()
		}
	})
	if p.got, err = io.ReadFull(p.out, make([]byte, 10)); err == nil {
		err = p.cmd.Process.Signal(syscall.SIGSTOP)
	}
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// goOn lets a stopped client go on, and checks that it gets all.
func (p *paused) goOn(t *testing.T, want, code int) {
	t.Helper()
	if err := p.cmd.Process.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	n, err := io.Copy(io.Discard, p.out)
	p.got += int(n)
	if err != nil {
		t.Error(err)
	}
	_ = p.cmd.Wait()
	if is := p.cmd.ProcessState.ExitCode(); p.got != want || is != code {
		t.Errorf("%q: %d bytes of %d, exit code %d, want %d", p.cmd.Args, p.got, want, is, code)
	}
}

// wordy is a node that wrote logged bytes, and holds a file /tmp/file of copied bytes.
func (s *site) wordy(t *testing.T) (logged, copied int) {
	t.Helper()
	const script = `head -c 700000 /dev/zero | tr "\\0" x; head -c 3000000 /dev/zero >/tmp/some; mv /tmp/some /tmp/file; sleep 1000`
	if _, text, code := s.berth(fmt.Sprintf("name: slow\nimage: host\ncommand: [sh, -c, '%s']\n", script), "apply", "-f", "-"); code != 0 {
		t.Fatal(text)
	}
	testkit.Eventually(t, "the node has written", func() bool {
		_, _, code := s.berth("", "exec", "slow", "--", "test", "-e", "/tmp/file")
		return code == 0
	})
	out, text, code := s.berth("", "cp", "slow:/tmp/file", "-")
	if code != 0 {
		t.Fatal(text)
	}
	return 700_000, len(out)
}

// TestStoppedClient: clients that are stopped while what they asked for is sent to them get every byte and the exit code when they go
// on. Others are answered meanwhile.
func TestStoppedClient(t *testing.T) {
	s := serve(t)
	logged, copied := s.wordy(t)
	const size = 3 << 20
	cat := s.pause(t, size, "exec", "-i", "slow", "--", "sh", "-c", "cat; exit 7")
	logs := s.pause(t, 0, "logs", "slow")
	cp := s.pause(t, 0, "cp", "slow:/tmp/file", "-")
	if _, text, code := s.remote("", "exec", "slow", "--", "true"); code != 0 {
		t.Error(text)
	}
	cat.goOn(t, size, 7)
	logs.goOn(t, logged, 0)
	cp.goOn(t, copied, 0)
}

// TestLongPause: 100 commands by an agent, whose readers or whose clients pause for longer than any wait of the agent's and the
// library's: every byte and exit code comes.
func TestLongPause(t *testing.T) {
	s := serve(t)
	logged, copied := s.wordy(t)
	const size, commands = 1 << 20, 100
	var all []*paused
	for i := range commands {
		p := s.pause(t, size, "exec", "-i", "slow", "--", "sh", "-c", "cat; exit 7")
		if i%2 == 0 { // the client goes on, and nobody reads
			if err := p.cmd.Process.Signal(syscall.SIGCONT); err != nil {
				t.Fatal(err)
			}
		}
		all = append(all, p)
	}
	logs, cp := s.pause(t, 0, "logs", "slow"), s.pause(t, 0, "cp", "slow:/tmp/file", "-")
	time.Sleep(40 * time.Second) // longer than 30 s, and than the 5 s that a websocket waits for the other side's end
	for _, p := range all {
		p.goOn(t, size, 7)
	}
	logs.goOn(t, logged, 0)
	cp.goOn(t, copied, 0)
}
