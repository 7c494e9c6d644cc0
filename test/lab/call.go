package lab

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"strings"
	"time"

	"berth/test/lab/wire"
)

// Result is how a command in a machine ended.
type Result struct {
	Out, Err string
	Code     int // 128+N when signal N ended it
}

// port is the host's end of one of a machine's command ports.
type port struct {
	conn net.Conn
	in   *bufio.Reader
}

func dialPort(socket string) (*port, error) {
	c, err := net.Dial("unix", socket)
	if err != nil {
		return nil, err
	}
	return &port{conn: c, in: bufio.NewReader(c)}, nil
}

func (p *port) close() { _ = p.conn.Close() }

// defaultTimeout is how long a command may take in a machine.
const defaultTimeout = 2 * time.Minute

// grace is how much longer than the command's time limit, at which the agent kills it, the harness waits for an answer.
const grace = 15 * time.Second

// request sends one request on a free port and reads its answer. It fails at once when QEMU ends.
func (m *VM) request(ctx context.Context, r wire.Request, body []byte) (Result, wire.Result, error) {
	var got Result
	var end wire.Result
	if m.process == nil {
		return got, end, fmt.Errorf("machine %s is off", m.Name)
	}
	var p *port
	select {
	case p = <-m.ports:
	case <-ctx.Done():
		return got, end, fmt.Errorf("machine %s: all command ports are busy: %w", m.Name, ctx.Err())
	case <-m.process.done:
		return got, end, m.because(errors.New("QEMU has ended"))
	}
	stop := context.AfterFunc(ctx, func() { _ = p.conn.SetDeadline(time.Unix(1, 0)) })
	err := p.exchange(r, body, &got, &end)
	if !stop() && err != nil {
		err = context.Cause(ctx)
	}
	if err != nil {
		p.close() // an answer may have been read in part
		select {
		case <-m.process.done:
			err = errors.New("QEMU has ended")
		case <-time.After(100 * time.Millisecond):
		}
		return got, end, m.because(fmt.Errorf("%s %s: %w", r.Do, strings.Join(r.Args, " "), err))
	}
	m.ports <- p
	if end.Error != "" {
		return got, end, fmt.Errorf("machine %s: %s: %s", m.Name, r.Do, end.Error)
	}
	return got, end, nil
}

// exchange sends one request and reads its answer.
func (p *port) exchange(r wire.Request, body []byte, got *Result, end *wire.Result) error {
	r.Size = int64(len(body))
	line, err := json.Marshal(r)
	if err != nil {
		return err
	}
	// Writing all before reading cannot deadlock: the agent reads the whole body before it answers.
	if _, err := p.conn.Write(append(append([]byte("\n"), append(line, '\n')...), body...)); err != nil {
		return err
	}
	var out, stderr bytes.Buffer
	for {
		kind, payload, err := wire.ReadFrame(p.in)
		if err != nil {
			return err
		}
		switch kind {
		case wire.Out:
			out.Write(payload)
		case wire.Err:
			stderr.Write(payload)
		case wire.End:
			got.Out, got.Err = out.String(), stderr.String()
			if err := json.Unmarshal(payload, end); err != nil {
				return err
			}
			got.Code = end.Code
			return nil
		default:
			return fmt.Errorf("a frame of kind %q", kind)
		}
	}
}

// ping returns the boot id and sets the machine's clock.
func (m *VM) ping(ctx context.Context) (bootID string, err error) {
	_, end, err := m.request(ctx, wire.Request{Do: wire.Ping, Now: time.Now().UnixNano()}, nil)
	return end.Boot, err
}

// do runs a command until the context's deadline, or for defaultTimeout if there is none.
func (m *VM) do(ctx context.Context, args []string) (Result, error) {
	limit := defaultTimeout
	if d, ok := ctx.Deadline(); ok {
		limit = time.Until(d)
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), limit+grace)
	defer cancel()
	got, end, err := m.request(ctx, wire.Request{Do: wire.Run, Args: args, Timeout: limit.Milliseconds()}, nil)
	if err == nil && end.Timeout {
		err = fmt.Errorf("machine %s: %s: killed after %v; it wrote:\n%s%s", m.Name, strings.Join(args, " "), limit, got.Out, got.Err)
	}
	return got, err
}
