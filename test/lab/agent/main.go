// Command agent executes the harness's requests in a guest of the lab. It is static, and each boot's initial RAM disk brings it
// into the guest, so a changed agent needs no new image.
package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"berth/test/lab/wire"
)

func main() {
	var served sync.WaitGroup
	for i := range wire.Ports {
		served.Go(func() {
			fmt.Fprintln(os.Stderr, "agent:", serve(wire.Port(i)))
			os.Exit(1) // systemd starts the agent again
		})
	}
	served.Wait()
}

// serve answers the requests of one port until an error.
func serve(name string) error {
	f, err := open(name)
	if err != nil {
		return err
	}
	port := &port{f: f}
	in := bufio.NewReader(port)
	for {
		line, err := in.ReadBytes('\n')
		if err != nil {
			return fmt.Errorf("read %s: %w", name, err)
		}
		var r wire.Request
		if json.Unmarshal(line, &r) != nil {
			continue // an empty line
		}
		body := io.LimitReader(in, r.Size)
		result := port.do(r, body)
		_, _ = io.Copy(io.Discard, body) // the unread rest
		end, err := json.Marshal(result)
		if err != nil {
			return err
		}
		if err := port.frame(wire.End, end); err != nil {
			return fmt.Errorf("write %s: %w", name, err)
		}
	}
}

// open opens the port. It waits up to 30 s for it to appear, because its driver may still be loading.
func open(name string) (*os.File, error) {
	for range 600 {
		files, _ := filepath.Glob("/sys/class/virtio-ports/*/name")
		for _, f := range files {
			if b, _ := os.ReadFile(f); strings.TrimSpace(string(b)) == name {
				return os.OpenFile(filepath.Join("/dev", filepath.Base(filepath.Dir(f))), os.O_RDWR, 0)
			}
		}
		time.Sleep(50 * time.Millisecond)
	}
	return nil, fmt.Errorf("no virtio-serial port %s", name)
}

// port is one port. Its lock keeps the frames of several writers apart.
type port struct {
	f  *os.File
	mu sync.Mutex
}

// Read waits until the host has connected: until then the driver reports end of file.
func (p *port) Read(b []byte) (int, error) {
	for {
		n, err := p.f.Read(b)
		if !errors.Is(err, io.EOF) {
			return n, err
		}
		time.Sleep(20 * time.Millisecond)
	}
}

func (p *port) frame(kind byte, payload []byte) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return wire.WriteFrame(p.f, kind, payload)
}

// stream is a command's standard output or standard error.
type stream struct {
	port *port
	kind byte
}

func (s stream) Write(b []byte) (int, error) {
	const piece = 32 << 10
	for i := 0; i < len(b); i += piece {
		if err := s.port.frame(s.kind, b[i:min(i+piece, len(b))]); err != nil {
			return i, err
		}
	}
	return len(b), nil
}

func (p *port) do(r wire.Request, body io.Reader) wire.Result {
	var result wire.Result
	var err error
	switch r.Do {
	case wire.Ping:
		var b []byte
		b, err = os.ReadFile("/proc/sys/kernel/random/boot_id")
		result.Boot = strings.TrimSpace(string(b))
		err = errors.Join(err, setClock(time.Unix(0, r.Now)))
	case wire.Run:
		result, err = p.run(r, body)
	case wire.Put:
		err = put(r, body)
	default:
		err = fmt.Errorf("do not know how to %q", r.Do)
	}
	if err != nil {
		result.Error = err.Error()
	}
	return result
}

// setClock sets the clock if it is a second or more off, as after a snapshot was restored.
func setClock(now time.Time) error {
	if d := time.Since(now); d > -time.Second && d < time.Second {
		return nil
	}
	tv := unix.NsecToTimeval(now.UnixNano())
	return unix.Settimeofday(&tv)
}

// run runs a command in its own session. Processes that it leaves behind hold up the answer for at most a second (WaitDelay).
func (p *port) run(r wire.Request, stdin io.Reader) (wire.Result, error) {
	cmd := exec.Command(r.Args[0], r.Args[1:]...)
	if r.Size > 0 {
		cmd.Stdin = stdin
	}
	cmd.Stdout, cmd.Stderr = stream{p, wire.Out}, stream{p, wire.Err}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	cmd.WaitDelay = time.Second
	cmd.Dir = "/"
	if err := cmd.Start(); err != nil {
		return wire.Result{Code: 127}, err
	}
	kill := time.AfterFunc(time.Duration(r.Timeout)*time.Millisecond, func() {
		_ = unix.Kill(-cmd.Process.Pid, unix.SIGKILL)
	})
	err := cmd.Wait()
	if !kill.Stop() {
		return wire.Result{Code: 137, Timeout: true}, nil
	}
	var exit *exec.ExitError
	if errors.As(err, &exit) || errors.Is(err, exec.ErrWaitDelay) {
		err = nil
	}
	ws := cmd.ProcessState.Sys().(syscall.WaitStatus)
	result := wire.Result{Code: ws.ExitStatus()}
	if ws.Signaled() {
		result.Code = 128 + int(ws.Signal())
	}
	return result, err
}

// put writes a file atomically.
func put(r wire.Request, body io.Reader) error {
	if err := os.MkdirAll(filepath.Dir(r.Path), 0o755); err != nil {
		return err
	}
	f, err := os.OpenFile(r.Path+".new", os.O_CREATE|os.O_TRUNC|os.O_WRONLY, os.FileMode(r.Mode))
	if err != nil {
		return err
	}
	_, err = io.Copy(f, body)
	if err = errors.Join(err, f.Chmod(os.FileMode(r.Mode)), f.Close()); err != nil {
		return err
	}
	return os.Rename(r.Path+".new", r.Path)
}
