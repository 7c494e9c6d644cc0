package wire

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"

	"berth/internal/sys/refuse"
)

// DefaultPort is iperf3's own; round trips use the next one.
const DefaultPort = 5201

// iperfRemedy installs iperf3.
const iperfRemedy = "apt-get install iperf3"

// Serve is the peer of a network benchmark: an iperf3 server on port and the other end of round trips on the next one.
// It tells w when both listen, and ends, nothing left, when ctx is done.
func Serve(ctx context.Context, w io.Writer, port int) error {
	if err := HasIperf(); err != nil {
		return err
	}
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", net.JoinHostPort("", strconv.Itoa(port+1)))
	if errors.Is(err, syscall.EADDRINUSE) {
		return refuse.Busyf("port %d is in use: choose another one with --port, here and where it is measured", port+1)
	}
	if err != nil {
		return fmt.Errorf("listen for round trips: %w", err)
	}
	defer l.Close()
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go answer(conn)
		}
	}()
	return serveIperf(ctx, port, func() {
		fmt.Fprintf(w, "serving on TCP ports %d (iperf3) and %d (round trips); Ctrl-C ends it\n", port, port+1)
	})
}

// serveIperf runs iperf3's server until ctx is done. It is told to end with this process, whatever ends that.
func serveIperf(ctx context.Context, port int, ready func()) error {
	runtime.LockOSThread() // see Host
	defer runtime.UnlockOSThread()
	cmd := exec.CommandContext(ctx, "iperf3", "--server", "--port", strconv.Itoa(port), "--forceflush")
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = 2 * time.Second
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		return fmt.Errorf("run iperf3: %w", err)
	}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("run iperf3: %w", err)
	}
	listens := false
	for s := bufio.NewScanner(out); s.Scan(); { // to its end: it must not wait for a full pipe
		if !listens && strings.HasPrefix(s.Text(), "Server listening") {
			listens = true
			ready()
		}
	}
	err = cmd.Wait()
	switch {
	case ctx.Err() != nil:
		return nil // asked to end
	case !listens:
		return refuse.Busyf("iperf3 cannot listen on port %d: %s", port, strings.TrimSpace(stderr.String()))
	case err != nil:
		return fmt.Errorf("run iperf3: %w: %s", err, strings.TrimSpace(stderr.String()))
	}
	return errors.New("run iperf3: it ended by itself")
}
