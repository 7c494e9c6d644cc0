package iosync

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"berth/internal/site/intercept/instances"
	"berth/internal/sys/fault"
	"berth/internal/sys/proc"
)

// How long an instance may take, and when one that ended is started again.
const (
	mostStart = 20 * time.Second // until it listens
	grace     = 5 * time.Second  // from SIGTERM to SIGKILL
	firstWait = time.Second      // doubled with each end that follows soon
	mostWait  = 30 * time.Second
	steady    = time.Minute // an instance that lived so long begins with firstWait again
)

// instance is the record of a node's instance.
type instance struct {
	proc.ID
	Port  uint16 `json:"port"`
	Netns uint64 `json:"netns"` // inode number of its network namespace
}

// running is the agent's record of a node's instance.
type running struct {
	instance
	began    time.Time
	listens  bool
	ended    bool
	leaving  bool          // its node goes
	begun    chan struct{} // closed when its process was started, or could not be; nil: by an agent before
	quit     func()        // the start waits for its turn no more
	turn     func()        // gives its turn to the next; may be called again
	again    func()        // has follow look for the socket; set while it listens
	why      string        // it ended
	failures int           // how often instances of the node ended soon, one after the other
	next     time.Time
	serves   map[netip.Addr]bool
}

// seek has the socket of an instance looked for anew. The caller holds the lock.
func (one *running) seek() {
	one.listens = false
	one.again()
}

// adopt goes on with the instance that an agent before started; nil if it has ended. The caller holds the lock.
func (w *steered) adopt(node string, left instance) (*running, error) {
	pidfd, err := left.Open()
	if err == nil && !left.Alive() { // perhaps ended by this agent, and not waited for yet
		err = errors.Join(unix.ESRCH, pidfd.Close())
	}
	if proc.Gone(err) {
		return nil, w.release(node, left.Port)
	}
	if err != nil {
		return nil, fmt.Errorf("go on with the instance of node %s: %w", node, err)
	}
	one := &running{instance: left, began: time.Now(), quit: func() {}, turn: func() {}, serves: map[netip.Addr]bool{}}
	w.all[node] = one
	go w.follow(node, one, pidfd, nil)
	return one, nil
}

// start begins to start the instance of a node, in place of one that ended. The caller holds the lock.
func (w *steered) start(node string, was *running) *running {
	one := &running{began: time.Now(), begun: make(chan struct{}), turn: func() {}, serves: map[netip.Addr]bool{}}
	if was != nil {
		one.failures, one.Port = was.failures, was.Port
	}
	w.all[node] = one
	var wanted context.Context
	wanted, one.quit = context.WithCancel(w.ctx)
	go w.begin(wanted, node, one)
	return one
}

// begin starts the instance of a node when its turn comes, and follows it. Other nodes do not wait for it.
func (w *steered) begin(wanted context.Context, node string, one *running) {
	defer one.quit()
	pidfd, wait, err := w.launch(wanted, node, one)
	close(one.begun)
	if err != nil {
		one.turn()
		w.over(node, one, err.Error())
		return
	}
	ends := make(chan error, 1)
	go func() { ends <- wait() }() // also when the caller has gone
	w.wake()                       // its process is recorded
	w.follow(node, one, pidfd, ends)
}

// launch waits for a turn, and starts the instance of a node.
func (w *steered) launch(wanted context.Context, node string, one *running) (pidfd *os.File, wait func() error, err error) {
	select {
	case w.turns <- struct{}{}:
		one.turn = sync.OnceFunc(func() { <-w.turns })
	case <-wanted.Done():
	}
	if wanted.Err() != nil {
		return nil, nil, errors.New("it is not needed any more")
	}
	if err := w.server.End(node, procs(w.at, node), 0, grace); err != nil { // an instance that another agent left, or that a killed agent did not record
		return nil, nil, err
	}
	port, err := w.reserve(node, one)
	if err != nil {
		return nil, nil, err
	}
	began := time.Now()
	id, wait, err := w.server.Start(node, port, func(c *exec.Cmd) error { return w.at.Start(node, c) })
	if err != nil {
		return nil, nil, err
	}
	fault.Point("instance of a node started on a file server")
	w.mu.Lock()
	one.ID, one.Netns, one.began = id, w.netns, began
	w.mu.Unlock()
	if pidfd, err = id.Open(); err != nil {
		return nil, nil, errors.Join(err, w.server.End(node, procs(w.at, node), id.PID, 0), wait())
	}
	return pidfd, wait, nil
}

// reserve gives an instance a port that nothing uses, in place of the one before, and guards it before anything listens there.
func (w *steered) reserve(node string, one *running) (port uint16, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if err := w.release(node, one.Port); err != nil { // no process listens there any more
		return 0, err
	}
	one.Port = 0
	for range 100 { // the kernel may choose one that another instance has not bound yet
		if port, err = w.server.FreePort(); err != nil {
			return 0, err
		}
		if w.ports[port] == "" {
			if err = w.steer.Guard(port); err == nil {
				w.ports[port], one.Port = node, port
			}
			return port, err
		}
	}
	return 0, errors.New("find a free port: the kernel chose only ports of other instances")
}

// release gives back the port of a node's instance, if no process listens there any more. The caller holds the lock.
func (w *steered) release(node string, port uint16) error {
	if port == 0 || w.ports[port] != node {
		return nil
	}
	delete(w.ports, port)
	return w.steer.Unguard(port)
}

// follow steers connections to an instance whenever it listens, and says when it ended.
func (w *steered) follow(node string, one *running, pidfd *os.File, ends chan error) {
	defer pidfd.Close()
	for alive, first := true, ends != nil; alive; first = false {
		within, cancel := context.WithTimeout(w.ctx, mostStart)
		socket, is, err := instances.Listening(within, pidfd, one.ID, one.Port)
		cancel()
		one.turn()
		listening, again := context.WithCancel(w.ctx)
		if socket != nil {
			w.mu.Lock()
			if !one.leaving && w.ctx.Err() == nil {
				err = w.serve(node, one, socket)
			}
			_ = socket.Close()
			one.listens, one.again = err == nil, again
			w.mu.Unlock()
		}
		if alive = is; alive && err == nil {
			if first {
				w.log.Info("instance of a node listens", "node", node, "pid", one.PID, "port", one.Port, "after", time.Since(one.began).Round(time.Millisecond))
			}
			w.wake()
			alive = proc.Wait(listening, pidfd) != nil
		}
		again()
		if w.ctx.Err() != nil {
			return // this agent ends, and the instance goes on
		}
		if err != nil {
			err = errors.Join(err, w.server.End(node, procs(w.at, node), one.PID, grace))
			w.over(node, one, err.Error())
			return
		}
	}
	why := "it ended"
	if ends != nil {
		if err := <-ends; err != nil {
			why = "it ended: " + err.Error()
		}
	}
	if last := w.server.Last(node); last != "" {
		why += fmt.Sprintf(", its last words in %s: %s", w.server.Log(node), last)
	}
	w.over(node, one, why)
}

// over notes that an instance ended, or did not begin.
func (w *steered) over(node string, one *running, why string) {
	w.mu.Lock()
	one.ended, one.why = true, why
	if time.Since(one.began) > steady {
		one.failures = 0
	}
	pause := min(firstWait<<min(one.failures, 10), mostWait)
	one.failures++
	one.next = time.Now().Add(pause)
	leaving := one.leaving
	w.mu.Unlock()
	if !leaving && w.ctx.Err() == nil {
		w.log.Warn("instance of a node ended: its connections are refused until another one listens", "node", node, "why", why, "again", pause)
		w.wake()
	}
	time.AfterFunc(pause+time.Millisecond, w.wake)
}
