package node

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"berth/internal/oci"
	"berth/internal/refuse"
	"berth/internal/step"
)

// dialKeeper connects to the keeper and starts it where there is none.
func (b *Berth) dialKeeper(ctx context.Context) (*net.UnixConn, error) {
	addr := &net.UnixAddr{Name: b.Layout.KeeperSocket(), Net: "unixpacket"}
	var last error
	for range 10 {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		c, err := net.DialUnix("unixpacket", nil, addr)
		if err == nil {
			return c, nil
		}
		if last = err; !errors.Is(err, unix.ENOENT) && !errors.Is(err, unix.ECONNREFUSED) {
			break
		}
		if err := b.startKeeper(); err != nil {
			return nil, err
		}
	}
	return nil, fmt.Errorf("reach the keeper at %s: %w", addr.Name, last)
}

// startKeeper starts the keeper and waits until it listens, or until it found that another one does.
func (b *Berth) startKeeper() error {
	if err := b.makeDirs(); err != nil {
		return err
	}
	r, w, err := os.Pipe()
	if err != nil {
		return fmt.Errorf("start the keeper: %w", err)
	}
	defer r.Close()
	log, err := os.OpenFile(b.Layout.KeeperLog(), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		w.Close()
		return fmt.Errorf("start the keeper: %w", err)
	}
	defer log.Close()
	cmd := exec.Command("/proc/self/exe", append(b.rootArgs(), "keeper")...)
	cmd.Args[0] = "berth"
	cmd.Dir = "/"
	cmd.Env = step.KeeperEnv(os.Environ())
	cmd.Stdout, cmd.Stderr = log, log
	cmd.ExtraFiles = []*os.File{w} // descriptor 3, closed when it is ready
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	err = cmd.Start()
	w.Close()
	if err != nil {
		return fmt.Errorf("start the keeper: %w", err)
	}
	step.Fault("keeper forked")
	go cmd.Wait() //nolint:errcheck // it outlives this command; waiting only spares a zombie
	_ = r.SetReadDeadline(time.Now().Add(10 * time.Second))
	_, _ = r.Read(make([]byte, 1))
	return nil
}

// ask asks the keeper, and the next one if it ends or, where asking twice does no harm, is killed over it.
func (b *Berth) ask(ctx context.Context, req request, files ...*os.File) (reply, error) {
	var r reply
	var err error
	for tries := range 10 {
		time.Sleep(time.Duration(tries) * 20 * time.Millisecond) // on a busy host a keeper takes a while to end
		var c *net.UnixConn
		if c, err = b.dialKeeper(ctx); err != nil {
			return reply{}, err
		}
		r, err = askOn(ctx, c, req, files...)
		c.Close()
		if again := errors.Is(err, errUnread) || errors.Is(err, errKilled) && req.Do != "create"; !again || ctx.Err() != nil {
			break
		}
	}
	return r, err
}

var (
	errUnread = errors.New("it ended before it heard")
	errKilled = errors.New("it was killed over it")
)

func askOn(ctx context.Context, c *net.UnixConn, req request, files ...*os.File) (reply, error) {
	stop := context.AfterFunc(ctx, func() { _ = c.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	if err := send(c, req, files...); err != nil {
		if errors.Is(err, unix.EPIPE) || errors.Is(err, unix.ECONNRESET) {
			err = errUnread
		}
		return reply{}, fmt.Errorf("ask the keeper to %s %s: %w", req.Do, req.Node, err)
	}
	step.Fault("asked the keeper to " + req.Do)
	var r reply
	if _, err := receive(c, &r); err != nil {
		switch {
		case ctx.Err() != nil:
			err = ctx.Err()
		case errors.Is(err, unix.ECONNRESET): // closed with the request unread: net/unix/af_unix.c, unix_release_sock
			err = errUnread
		default:
			err = errKilled
		}
		return reply{}, fmt.Errorf("ask the keeper to %s %s: %w", req.Do, req.Node, err)
	}
	return r, r.error()
}

func (r reply) error() error {
	switch {
	case r.Err == "":
		return nil
	case r.Code != 0:
		return &oci.CommandError{Code: r.Code, Command: r.Command, Why: r.Err}
	case r.Kind != 0:
		return &refuse.Error{Kind: r.Kind, What: r.Err, Remedy: r.Remedy}
	}
	if r.Full {
		return fullError(r.Err)
	}
	return errors.New(r.Err)
}

// fullError is an error of the keeper's that means "no space left on device".
type fullError string

func (e fullError) Error() string     { return string(e) }
func (e fullError) Is(err error) bool { return err == unix.ENOSPC }

func replyOf(err error) reply {
	if err == nil {
		return reply{}
	}
	if ce, ok := errors.AsType[*oci.CommandError](err); ok {
		return reply{Err: ce.Why, Code: ce.Code, Command: ce.Command}
	}
	if re, ok := errors.AsType[*refuse.Error](err); ok {
		return reply{Err: re.What, Kind: re.Kind, Remedy: re.Remedy}
	}
	return reply{Err: err.Error(), Full: errors.Is(err, unix.ENOSPC)}
}

// createByKeeper makes the keeper the parent of the runtime, so that it learns how the node's init ends.
func (b *Berth) createByKeeper(name string) func(context.Context, *oci.Launch) error {
	return func(ctx context.Context, l *oci.Launch) error {
		_, err := b.ask(ctx, request{Do: "create", Node: name, Launch: l}, l.Stdin, l.Stdout, l.Stderr, l.Lock)
		return err
	}
}

// watch tells the keeper that the node is up.
func (b *Berth) watch(ctx context.Context, name string) error {
	_, err := b.ask(ctx, request{Do: "watch", Node: name})
	return err
}

// exitStatus learns how an ended init ended: from the keeper, its parent, or else from the kernel. In this order, as only a
// parent is told that an init powered its namespace off (SIGINT, reboot(2)): the pidfd has the SIGKILL that followed.
func (b *Berth) exitStatus(ctx context.Context, name string, pid int, start uint64, pidfd *os.File) (e ending) {
	if b.keeperRuns() {
		ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
		defer cancel()
		r, err := b.ask(ctx, request{Do: "exit", Node: name, PID: pid})
		if err == nil && r.Known {
			return ending{ws: unix.WaitStatus(r.Status), known: true}
		}
		e.after = r.After
	} else if pidfd == nil {
		e.after = b.keeperActed()
	}
	if pidfd != nil {
		e.ws, e.known = exitOf(pidfd, pid, start)
	}
	return e
}

// keeperRuns reports whether somebody holds the keeper's lock.
func (b *Berth) keeperRuns() bool {
	f, err := os.OpenFile(b.Layout.KeeperLock(), os.O_RDWR, 0)
	if err != nil {
		return false
	}
	defer f.Close()
	l := unix.Flock_t{Type: unix.F_WRLCK}
	return keeperLock(f, unix.F_OFD_GETLK, &l) == nil && l.Type != unix.F_UNLCK
}
