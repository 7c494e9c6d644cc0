package wire

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"time"

	"golang.org/x/sys/unix"
)

// pingSize is the payload of a round trip, bytes: a small request, and its answer of the same size.
const pingSize = 64

// pingWait is how long an answer may take. A lost packet is sent again by TCP well within it.
const pingWait = 5 * time.Second

// Pinged is the result of a client of round trips, in the JSON that the command in an arm prints for the run.
type Pinged struct {
	Trips     int64   `json:"round_trips"`
	P50       float64 `json:"p50_us"` // microseconds
	P99       float64 `json:"p99_us"`
	RunMillis int64   `json:"run_ms"`
	Error     string  `json:"error,omitempty"` // then nothing was measured
}

// Ping sends a request over one TCP connection and waits for the answer, again and again: warm long, then run long,
// and only what ends in run counts. Both ends use blocking calls, so that no scheduler of goroutines is measured.
func Ping(ctx context.Context, address string, run, warm time.Duration) (Pinged, error) {
	dialer := net.Dialer{Timeout: pingWait}
	conn, err := dialer.DialContext(ctx, "tcp", address)
	if err != nil {
		return Pinged{}, err
	}
	f, err := blocking(conn)
	if err != nil {
		return Pinged{}, err
	}
	defer f.Close()
	fd := int(f.Fd())
	stop := context.AfterFunc(ctx, func() { _ = unix.Shutdown(fd, unix.SHUT_RDWR) })
	defer stop()
	buf := make([]byte, pingSize)
	trips := make([]time.Duration, 0, 1<<16)
	begun := time.Now()
	for sent := begun; sent.Sub(begun) < warm+run; {
		if err := trip(fd, buf); err != nil {
			return Pinged{}, errors.Join(ctx.Err(), err)
		}
		now := time.Now()
		if sent.Sub(begun) >= warm {
			trips = append(trips, now.Sub(sent))
		}
		sent = now
	}
	if len(trips) == 0 {
		return Pinged{}, errors.New("not one round trip was completed after the warm-up")
	}
	slices.Sort(trips)
	return Pinged{
		Trips: int64(len(trips)), P50: micros(quantile(trips, .5)), P99: micros(quantile(trips, .99)),
		RunMillis: (time.Since(begun) - warm).Milliseconds(),
	}, nil
}

// quantile returns the smallest value that is not below the part q of the sorted, non-empty x.
func quantile(x []time.Duration, q float64) time.Duration {
	i := int(q * float64(len(x)))
	return x[min(i, len(x)-1)]
}

func micros(d time.Duration) float64 { return float64(d) / float64(time.Microsecond) }

// trip sends buf and reads as much back.
func trip(fd int, buf []byte) error {
	for sent := 0; sent < len(buf); {
		n, err := unix.Write(fd, buf[sent:])
		if err != nil && !errors.Is(err, unix.EINTR) {
			return fmt.Errorf("send a request: %w", err)
		}
		sent += max(n, 0)
	}
	return fill(fd, buf)
}

// fill reads until buf is full. It returns io.EOF where the other end has closed.
func fill(fd int, buf []byte) error {
	for got := 0; got < len(buf); {
		n, err := unix.Read(fd, buf[got:])
		switch {
		case errors.Is(err, unix.EINTR):
		case errors.Is(err, unix.EAGAIN):
			return fmt.Errorf("no answer came within %v", pingWait)
		case err != nil:
			return fmt.Errorf("read an answer: %w", err)
		case n == 0:
			return io.EOF
		}
		got += max(n, 0)
	}
	return nil
}

// blocking takes the connection out of the runtime's poller: reads wait in the kernel, at most pingWait. It closes conn.
func blocking(conn net.Conn) (*os.File, error) {
	defer conn.Close()
	tcp, ok := conn.(*net.TCPConn)
	if !ok {
		return nil, fmt.Errorf("the connection to %s is not TCP", conn.RemoteAddr())
	}
	f, err := tcp.File() // a descriptor of its own; Go has set TCP_NODELAY
	if err != nil {
		return nil, fmt.Errorf("take over the connection: %w", err)
	}
	fd := int(f.Fd()) // which makes it blocking
	wait := unix.NsecToTimeval(pingWait.Nanoseconds())
	if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &wait); err != nil {
		f.Close()
		return nil, fmt.Errorf("limit the wait for an answer: %w", err)
	}
	return f, nil
}

// answer sends back what comes over conn, until the other end closes or is silent for pingWait.
func answer(conn net.Conn) {
	f, err := blocking(conn)
	if err != nil {
		return
	}
	defer f.Close()
	fd := int(f.Fd())
	buf := make([]byte, pingSize)
	for {
		if err := fill(fd, buf); err != nil {
			return
		}
		if _, err := unix.Write(fd, buf); err != nil { // 64 bytes fit into the socket's buffer, or it is dead
			return
		}
	}
}
