package keeper

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"berth/internal/sys/fault"
	"berth/internal/sys/fork"
	"berth/internal/sys/layout"
	"berth/internal/sys/lock"
	"berth/internal/sys/refuse"
)

// Client talks to the keeper of a layout, and starts it where there is none.
type Client struct {
	Layout layout.Layout
}

// Create makes the keeper the parent of the runtime, so that it learns how the node's process 1 ends. The files are stdin,
// stdout, stderr and the node's lock.
func (c Client) Create(ctx context.Context, node string, launch any, files [4]*os.File) error {
	text, err := json.Marshal(launch)
	if err != nil {
		return err
	}
	return c.tell(ctx, request{Do: doCreate, Node: node, Launch: text}, files[:]...)
}

// Watch tells the keeper that the node is up.
func (c Client) Watch(ctx context.Context, node string) error {
	return c.tell(ctx, request{Do: doWatch, Node: node})
}

// Exit waits for the end of the node's process 1 and returns how it ended, as far as the keeper knows: only the parent is
// told the complete status.
func (c Client) Exit(ctx context.Context, node string, pid int) (Ending, error) {
	r, err := c.ask(ctx, request{Do: doExit, Node: node, PID: pid})
	return Ending{Status: unix.WaitStatus(r.Status), Known: r.Known, After: r.After}, err
}

// FlushLog returns when the node's output until now is in its log.
func (c Client) FlushLog(ctx context.Context, node string) error {
	return c.tell(ctx, request{Do: doFlush, Node: node})
}

// EndLog is FlushLog, and then the keeper closes the pipe to the log.
func (c Client) EndLog(ctx context.Context, node string) error {
	return c.tell(ctx, request{Do: doEndLog, Node: node})
}

// Upgrade makes a keeper that runs become this berth.
func (c Client) Upgrade(ctx context.Context) error {
	self, err := os.Open(fork.Berth())
	if err != nil {
		return fmt.Errorf("open this program: %w", err)
	}
	defer self.Close()
	conn, err := c.dial(ctx)
	if err != nil {
		return err
	}
	defer conn.Close()
	r, err := converse(ctx, conn, request{Do: doUpgrade}, self)
	if err == nil && r.Hello != own() {
		err = fmt.Errorf("the keeper is %s after its upgrade to %s", r.Hello, own())
	}
	return err
}

// Runs reports whether a keeper holds its lock.
func (c Client) Runs() bool {
	f, err := os.OpenFile(c.Layout.KeeperLock(), os.O_RDWR, 0)
	if err != nil {
		return false
	}
	defer f.Close()
	held, err := lock.Held(f)
	return err == nil && held
}

// Acted is when the last keeper last did something, for where none runs; never a zero time.
func (c Client) Acted() time.Time {
	f, err := os.Open(c.Layout.KeeperLock())
	if err != nil {
		return time.Unix(0, 0)
	}
	defer f.Close()
	return lastAct(f)
}

// Guard is a connection that makes the keeper remove a node if this process dies.
type Guard struct {
	conn *net.UnixConn
}

// Guard makes the keeper remove the node if this process dies before the guard is closed. A keeper that is killed is
// started again.
func (c Client) Guard(ctx context.Context, node string) (*Guard, error) {
	conn, _, err := c.open(ctx, request{Do: doGuard, Node: node})
	if err != nil {
		return nil, err
	}
	go func() {
		_, err := receive(conn, nil, nil)
		closed := errors.Is(err, net.ErrClosed) && errors.Is(conn.SetDeadline(time.Time{}), net.ErrClosed)
		if !closed && ctx.Err() == nil {
			_, _ = c.Guard(ctx, node)
		}
	}()
	return &Guard{conn}, nil
}

// Close ends the guard: the node is gone.
func (g *Guard) Close() { g.conn.Close() }

// ask asks the keeper, and the next one if it ends or, where asking twice does no harm, is killed over it.
func (c Client) ask(ctx context.Context, req request, files ...*os.File) (reply, error) {
	conn, r, err := c.open(ctx, req, files...)
	if conn != nil {
		conn.Close()
	}
	return r, err
}

// tell is ask where the answer is only whether it was done.
func (c Client) tell(ctx context.Context, req request, files ...*os.File) error {
	_, err := c.ask(ctx, req, files...)
	return err
}

// open is ask that leaves the connection open, unless it fails.
func (c Client) open(ctx context.Context, req request, files ...*os.File) (conn *net.UnixConn, r reply, err error) {
	var refused error // to upgrade
	for tries := range 10 {
		time.Sleep(time.Duration(tries) * 20 * time.Millisecond) // on a busy host a keeper takes a while to end
		if conn, err = c.dial(ctx); err != nil {
			return nil, r, err
		}
		r, err = converse(ctx, conn, req, files...)
		if err == nil {
			return conn, r, nil
		}
		conn.Close()
		if d, differs := errors.AsType[*differs](err); differs && ctx.Err() == nil {
			if refused == nil && !d.keeper.newer(own()) {
				if refused = c.Upgrade(ctx); refused == nil {
					continue
				}
			}
			if d.keeper.Protocol != protocol {
				return nil, r, d.explain(refused)
			}
			req.Accept = &d.keeper
			continue
		}
		if again := errors.Is(err, errUnread) || errors.Is(err, errKilled) && req.Do != doCreate; !again || ctx.Err() != nil {
			break
		}
	}
	return nil, r, err
}

// dial connects to the keeper and starts it where there is none.
func (c Client) dial(ctx context.Context) (*net.UnixConn, error) {
	addr := &net.UnixAddr{Name: c.Layout.KeeperSocket(), Net: "unixpacket"}
	var last error
	for range 10 {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		conn, err := net.DialUnix("unixpacket", nil, addr)
		if err == nil {
			return conn, nil
		}
		if last = err; !errors.Is(err, unix.ENOENT) && !errors.Is(err, unix.ECONNREFUSED) {
			break
		}
		if err := c.start(); err != nil {
			return nil, err
		}
	}
	return nil, fmt.Errorf("reach the keeper at %s: %w", addr.Name, last)
}

var (
	errUnread = errors.New("it ended before it heard")
	errKilled = errors.New("it was killed over it")
)

// differs is the answer of a keeper of another version, which did nothing.
type differs struct{ keeper Version }

func (d *differs) Error() string {
	return fmt.Sprintf("the keeper is %s, and this is %s", d.keeper, own())
}

func (d *differs) explain(refused error) error {
	if refused == nil {
		return refuse.Cannotf("use the newer berth", "%s, which is older", d.Error())
	}
	return fmt.Errorf("%s; it cannot be upgraded: %w", d.Error(), refused)
}

// converse says one thing on a connection and hears the answer.
func converse(ctx context.Context, conn *net.UnixConn, req request, files ...*os.File) (r reply, err error) {
	defer func() {
		if err != nil && r.Err == "" {
			err = fmt.Errorf("ask the keeper to %s: %w", strings.TrimSpace(req.Do+" "+req.Node), err)
		}
	}()
	stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	req.Hello = own()
	if err := send(conn, req, files...); err != nil {
		if errors.Is(err, unix.EPIPE) || errors.Is(err, unix.ECONNRESET) {
			err = errUnread
		}
		return r, err
	}
	fault.Point("asked the keeper to " + req.Do)
	p, err := receive(conn, nil, nil)
	switch {
	case err == nil:
	case ctx.Err() != nil:
		return r, ctx.Err()
	case errors.Is(err, unix.ECONNRESET): // closed with the request unread: net/unix/af_unix.c, unix_release_sock
		return r, errUnread
	default:
		return r, errKilled
	}
	defer p.close()
	g := p.greeting()
	if g.Differs {
		return r, &differs{g.Hello}
	}
	if err := Decode(p.data, &r); err != nil {
		return reply{}, explain(err, g.Hello)
	}
	return r, r.error()
}
