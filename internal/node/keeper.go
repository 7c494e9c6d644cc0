package node

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"os/signal"
	"runtime/debug"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"berth/internal/nodelog"
	"berth/internal/step"
)

// keeper is the one process a host that outlives commands: it holds a pidfd of each node's init, and when one ends it
// writes the exit status, brings the node's links home and applies the restart policy. It ends with the last node.
type keeper struct {
	b   *Berth
	log *slog.Logger

	mu      sync.Mutex
	ending  bool                // nothing is taken on any more
	busy    int                 // nodes watched, connections open, restarts pending
	watched map[string]*watched // by node
	due     map[string]bool     // nodes that wait for a restart
	exits   map[int]unix.WaitStatus
	idle    chan struct{}

	vfs      vfWatch
	wires    wireWatch
	spawning sync.RWMutex // held for reading while a runtime is at work
	before   time.Time    // the last thing that the keeper before this one did; long ago if there was none
}

type watched struct {
	pid   int
	ended chan struct{} // closed when the init has ended and its log is complete
	ending
}

// Keep runs the keeper. ready is closed when it listens, or when another keeper does.
func (b *Berth) Keep(ctx context.Context, ready *os.File) error {
	defer ready.Close()
	debug.SetGCPercent(100) // it stays: memory counts for more than time
	if err := b.makeDirs(); err != nil {
		return err
	}
	lockFile, err := os.OpenFile(b.Layout.KeeperLock(), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return fmt.Errorf("lock the keeper: %w", err)
	}
	defer lockFile.Close()
	switch err := keeperLock(lockFile, unix.F_OFD_SETLK, &unix.Flock_t{Type: unix.F_WRLCK}); {
	case errors.Is(err, unix.EAGAIN), errors.Is(err, unix.EACCES):
		return nil
	case err != nil:
		return fmt.Errorf("lock the keeper: %w", err)
	}
	step.Fault("keeper locked")
	// What loses its parent becomes the keeper's child: the runtime's init, whose exit code only a parent is told.
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("become a subreaper: %w", err)
	}
	path := b.Layout.KeeperSocket()
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove the last keeper's socket: %w", err)
	}
	l, err := net.ListenUnix("unixpacket", &net.UnixAddr{Name: path, Net: "unixpacket"})
	if err != nil {
		return fmt.Errorf("listen for commands: %w", err)
	}
	step.Fault("keeper listens")
	l.SetUnlinkOnClose(false) // the socket is removed before the lock is given up, not after
	k := &keeper{
		before: lastAct(lockFile), log: slog.New(slog.NewTextHandler(os.Stderr, nil)),
		watched: map[string]*watched{}, due: map[string]bool{}, exits: map[int]unix.WaitStatus{}, idle: make(chan struct{}, 1),
	}
	logs, err := nodelog.NewSet(func(node string, why error) {
		k.log.Error("what the node writes is dropped", "node", node, "err", why)
	})
	if err != nil {
		return err
	}
	k.b = b.inKeeper(logs)
	k.leaveUnit()
	return k.serve(ctx, l, ready)
}

func (k *keeper) serve(ctx context.Context, l *net.UnixListener, ready *os.File) error {
	go k.reapOrphans(ctx)
	look := make(chan struct{}, 1)
	go k.followDevices(ctx, look)
	go k.lookAfterDevices(ctx, look)
	k.enter() // the starter: it connects, or the grace below ends
	k.adopt(ctx, func(name string) bool { _, err := k.b.createdInit(name); return err == nil })
	go k.accept(ctx, l)
	ready.Close()
	time.AfterFunc(500*time.Millisecond, k.leave)
	for ctx.Err() == nil && !k.done(ctx) {
		select {
		case <-ctx.Done():
		case <-k.idle:
		}
	}
	if hostEnds() {
		k.stopNodes(context.WithoutCancel(ctx))
	}
	_ = os.Remove(k.b.Layout.KeeperSocket())
	step.Fault("keeper ends")
	return l.Close() // who connected too late sees that nobody read what was asked
}

// enter counts one thing more to do; false if the keeper ends.
func (k *keeper) enter() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	if !k.ending {
		k.busy++
	}
	return !k.ending
}

func (k *keeper) leave() {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.busy--; k.busy == 0 {
		select {
		case k.idle <- struct{}{}:
		default:
		}
	}
}

// done reports whether there is nothing left to do, after a last look: a node may be up of which nobody told.
func (k *keeper) done(ctx context.Context) bool {
	k.mu.Lock()
	busy := k.busy
	k.mu.Unlock()
	if busy > 0 {
		return false
	}
	k.adopt(ctx, k.b.wantsKeeper)
	k.mu.Lock()
	defer k.mu.Unlock()
	k.ending = k.busy == 0
	return k.ending
}

// adopt takes up the nodes that are there, as after a keeper that was killed.
func (k *keeper) adopt(ctx context.Context, mine func(name string) bool) {
	names, err := k.b.names()
	if err != nil {
		k.log.Error("list nodes", "err", err)
	}
	for _, name := range names {
		if !mine(name) && k.b.restartIn(name, false) == 0 {
			continue // being made, or not running
		}
		if err := k.watch(ctx, name); err != nil {
			k.log.Error("watch node", "node", name, "err", err)
		}
	}
	k.wires.again()
}

func (k *keeper) accept(ctx context.Context, l *net.UnixListener) {
	for {
		c, err := l.AcceptUnix()
		if err != nil {
			return
		}
		if !k.enter() {
			c.Close()
			continue
		}
		go func() {
			defer k.leave()
			defer c.Close()
			if !fromRoot(c) {
				k.log.Error("a connection that is not root's was closed")
				return
			}
			k.converse(ctx, c)
		}()
	}
}

func (k *keeper) converse(ctx context.Context, c *net.UnixConn) {
	for {
		var req request
		files, err := receive(c, &req)
		if err != nil {
			return
		}
		step.Fault("keeper heard " + req.Do)
		k.acts()
		r := k.answer(ctx, c, &req, files)
		step.Fault("keeper did " + req.Do)
		closeAll(files)
		if err := send(c, r); err != nil {
			return
		}
		if req.Do == "guard" {
			k.guard(ctx, c, req.Node)
			return
		}
	}
}

func (k *keeper) answer(ctx context.Context, c *net.UnixConn, req *request, files []*os.File) reply {
	switch req.Do {
	case "create":
		if req.Launch == nil || len(files) != 4 {
			return replyOf(errors.New("create needs a launch and four files"))
		}
		l := req.Launch
		l.Stdin, l.Stdout, l.Stderr, l.Lock = files[0], files[1], files[2], files[3]
		// The runtime keeps the connection open too: if the keeper is killed, the asker waits for the runtime's end.
		line, err := c.File()
		if err != nil {
			return replyOf(err)
		}
		defer func() {
			_ = unix.SetNonblock(int(line.Fd()), true) // handing it on made the connection a blocking one
			line.Close()
		}()
		l.Line = line
		var r reply
		k.spawn(func() { r = replyOf(k.b.launch(ctx, req.Node, l)) })
		k.stay(ctx, req.Node)
		return r
	case "watch":
		return replyOf(k.watch(ctx, req.Node))
	case "exit":
		return k.exit(req)
	case flushLog, endLog:
		doLog(k.b.logs, req.Node, req.Do)
		return reply{}
	case "guard":
		return reply{}
	}
	return replyOf(fmt.Errorf("this keeper does not know %q; it is from an older berth and ends with the last node", req.Do))
}

// watch begins to wait for the end of the node's init, or for the time of its restart.
func (k *keeper) watch(ctx context.Context, name string) error {
	init, err := k.b.createdInit(name)
	if err != nil {
		if in := k.b.restartIn(name, false); in > 0 {
			k.restartIn(ctx, name, in)
			return nil
		}
		return err
	}
	k.mu.Lock()
	if w := k.watched[name]; w != nil && w.pid == init.PID {
		k.mu.Unlock()
		return nil
	}
	w := &watched{pid: init.PID, ended: make(chan struct{})}
	k.watched[name] = w
	k.busy++
	k.mu.Unlock()
	if err := k.b.logs.Open(name, k.b.log(name)); err != nil {
		k.log.Error("read what the node writes", "node", name, "err", err)
	}
	letGo := k.watchVFs(ctx, name)
	unwire := k.watchWires(ctx, name, init.PID)
	leases, endLeases := context.WithCancel(ctx)
	k.keepLeases(leases, name, init.PID)
	go func() {
		defer k.leave()
		defer letGo()
		defer unwire()
		w.ending = k.await(w.pid, init.StartTime)
		k.b.logs.Finish(name, logWait)
		close(w.ended)
		k.acts()
		endLeases()
		step.Fault("keeper saw an end")
		if !hostEnds() { // else stopNodes notes it, and nothing is restarted
			k.ended(ctx, name, w)
		}
	}()
	return nil
}

// await waits for the init's end without holding a thread: the pidfd is in the runtime's poller.
func (k *keeper) await(pid int, start uint64) (e ending) {
	fd, err := unix.PidfdOpen(pid, unix.PIDFD_NONBLOCK)
	if err != nil {
		return k.unseen(pid)
	}
	f := os.NewFile(uintptr(fd), "pidfd")
	defer f.Close()
	if s, _ := startTime(pid); s != start {
		return k.unseen(pid)
	}
	if conn, err := f.SyscallConn(); err == nil {
		_ = conn.Read(func(fd uintptr) bool {
			n, _ := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 0)
			return n > 0
		})
	}
	if e.ws, e.known = k.reaped(pid); !e.known {
		e.ws, e.known = exitOf(f, pid, start)
	}
	return e
}

func (k *keeper) ended(ctx context.Context, name string, w *watched) {
	var again time.Duration
	var err error
	k.spawn(func() { again, err = k.b.ended(ctx, name, w.pid, w.ending) })
	if err != nil {
		k.log.Error("clean up after node", "node", name, "err", err)
	}
	k.mu.Lock()
	if k.watched[name] == w {
		delete(k.watched, name)
	}
	k.mu.Unlock()
	if again > 0 {
		k.restartIn(ctx, name, again)
	}
}

// restartIn starts a node after a time, unless that is planned already.
func (k *keeper) restartIn(ctx context.Context, name string, after time.Duration) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.due[name] {
		return
	}
	k.due[name] = true
	k.busy++
	time.AfterFunc(after, func() {
		defer k.leave()
		var again time.Duration
		var err error
		k.spawn(func() { again, err = k.b.restart(ctx, name) })
		k.mu.Lock()
		delete(k.due, name)
		k.mu.Unlock()
		if err != nil {
			k.log.Error("restart node", "node", name, "err", err)
		}
		if again > 0 {
			k.restartIn(ctx, name, again)
		}
	})
}

// exit tells how the init of a watched node ended.
func (k *keeper) exit(req *request) reply {
	k.mu.Lock()
	w := k.watched[req.Node]
	k.mu.Unlock()
	if w == nil || w.pid != req.PID {
		return reply{}
	}
	<-w.ended
	return reply{Status: uint32(w.ws), Known: w.known, After: w.after}
}

// guard waits for the end of the berth run that the connection belongs to, then removes what it left.
func (k *keeper) guard(ctx context.Context, c *net.UnixConn, name string) {
	var req request
	files, _ := receive(c, &req)
	closeAll(files)
	var err error
	k.spawn(func() { err = k.b.removeForeground(ctx, name) })
	if err != nil {
		k.log.Error("remove the node of a berth run that was killed", "node", name, "err", err)
	}
}

// reapOrphans collects children that nobody waits for: inits of nodes that a killed command left behind.
func (k *keeper) reapOrphans(ctx context.Context) {
	child := make(chan os.Signal, 1)
	signal.Notify(child, syscall.SIGCHLD)
	for {
		select {
		case <-ctx.Done():
			return
		case <-child:
			k.reap()
		}
	}
}

// reap collects every child that has ended, while no runtime is at work: os/exec waits for those itself.
func (k *keeper) reap() {
	if !k.spawning.TryLock() {
		return // whoever is at work calls reap when done
	}
	defer k.spawning.Unlock()
	k.mu.Lock()
	defer k.mu.Unlock()
	for {
		var ws unix.WaitStatus
		pid, err := unix.Wait4(-1, &ws, unix.WNOHANG, nil)
		if err != nil || pid <= 0 {
			return
		}
		if len(k.exits) > 4096 { // only those of a node that is about to be watched are ever asked for
			clear(k.exits)
		}
		k.exits[pid] = ws
	}
}

// spawn runs what may start processes of its own.
func (k *keeper) spawn(f func()) {
	k.spawning.RLock()
	f()
	k.spawning.RUnlock()
	k.reap()
}

// keeperLock is an open file description lock on the whole file: it can be asked about without being taken (fcntl(2)).
func keeperLock(f *os.File, cmd int, l *unix.Flock_t) error {
	return unix.FcntlFlock(f.Fd(), cmd, l)
}
