package keeper

import (
	"context"
	"encoding/json"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"berth/internal/node/nodelog"
	"berth/internal/sys/fault"
	"berth/internal/sys/fork"
	"berth/internal/sys/proc"
)

// Nodes are the nodes of a host, as far as the keeper has to do with their lives. A method returns without an error if the
// node that it is about is gone.
type Nodes interface {
	// Names lists the nodes of which any file exists.
	Names() ([]string, error)
	// First returns the first process of a node that is up; it may have ended. It is an error if the node is not up.
	First(node string) (proc.ID, error)
	// Due returns after which time a node that has ended is to be started again; 0: never.
	Due(node string) time.Duration
	// Log returns where a node's output is read and written.
	Log(node string) nodelog.Log

	// Launch starts the runtime of a node that a command makes, and returns when its first process exists. line is
	// the connection to that command, which the runtime keeps open while it works.
	Launch(ctx context.Context, node string, launch json.RawMessage, files [4]*os.File, line *os.File) error
	// Made returns when the command that makes the node has ended. It reports whether the node is to be watched.
	Made(ctx context.Context, node string) bool
	// Ended notes how a node's first process ended, cleans up after it, and returns after which time to start the node
	// again; 0: never.
	Ended(ctx context.Context, node string, pid int, e Ending) (time.Duration, error)
	// Restart starts a node that is due. If that fails it returns after which time to try again.
	Restart(ctx context.Context, node string) (time.Duration, error)
	// Abandoned removes the node of a command that was killed while it held a guard.
	Abandoned(ctx context.Context, node string) error
	// Stop ends a running node, gently until grace is over.
	Stop(ctx context.Context, node string, grace time.Duration) error
}

// Ending is how a node's first process ended.
type Ending struct {
	Status unix.WaitStatus
	Known  bool      // whether Status is known
	After  time.Time // if no process saw the end: a moment before it; else zero
}

// watched is a node whose first process is waited for.
type watched struct {
	pid   int
	ended chan struct{} // closed when the process has ended and its log is complete
	Ending
}

// logWait is how long the keeper waits until the output of a node is in its log. The node cannot make it longer.
const logWait = time.Second

// watch begins to wait for the end of a node's first process, or for the time of its restart.
func (k *Keeper) watch(ctx context.Context, node string) error {
	first, err := k.nodes.First(node)
	if err != nil {
		if in := k.nodes.Due(node); in > 0 {
			k.restartIn(ctx, node, in)
			return nil
		}
		return err
	}
	k.mu.Lock()
	if w := k.watched[node]; w != nil && w.pid == first.PID {
		k.mu.Unlock()
		return nil
	}
	w := &watched{pid: first.PID, ended: make(chan struct{})}
	k.watched[node] = w
	k.busy++
	k.mu.Unlock()
	if err := k.Logs.Open(node, k.nodes.Log(node)); err != nil {
		k.Log.Error("read what the node writes", "node", node, "err", err)
	}
	running, ended := context.WithCancel(ctx)
	for _, watcher := range k.watchers {
		watcher.Watch(running, node, first)
	}
	go func() {
		defer k.leave()
		pidfd, err := first.Open() // else it had ended before, and was reaped
		if err == nil {
			defer pidfd.Close()
			_ = proc.Wait(context.Background(), pidfd)
		}
		k.begin() // true: the keeper does not end while it watches a node
		defer k.finish()
		w.Ending = k.how(first, pidfd)
		k.Logs.Finish(node, logWait)
		close(w.ended)
		k.acts()
		ended()
		fault.Point("keeper saw an end")
		if !hostEnds() { // else stopNodes notes it, and nothing is restarted
			k.ended(ctx, node, w)
		}
	}()
	return nil
}

// how tells how a process ended. pidfd is nil if it had ended before this keeper looked.
func (k *Keeper) how(first proc.ID, pidfd *os.File) (e Ending) {
	if e.Status, e.Known = fork.Ended(first.PID); e.Known {
		return e
	}
	if pidfd == nil {
		return Ending{After: k.before}
	}
	e.Status, e.Known = proc.Exit(pidfd, first)
	return e
}

func (k *Keeper) ended(ctx context.Context, node string, w *watched) {
	again, err := k.nodes.Ended(ctx, node, w.pid, w.Ending)
	if err != nil {
		k.Log.Error("clean up after node", "node", node, "err", err)
	}
	k.mu.Lock()
	if err == nil && k.watched[node] == w { // else a command notes the end later, and asks how it was
		delete(k.watched, node)
	}
	k.mu.Unlock()
	if again > 0 {
		k.restartIn(ctx, node, again)
	}
}

// restartIn starts a node after a time, unless that is planned already.
func (k *Keeper) restartIn(ctx context.Context, node string, after time.Duration) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if _, due := k.due[node]; due {
		return
	}
	k.due[node] = time.Now().Add(after)
	k.busy++
	time.AfterFunc(after, func() {
		defer k.leave()
		k.begin()
		defer k.finish()
		again, err := k.nodes.Restart(ctx, node)
		k.mu.Lock()
		delete(k.due, node)
		k.mu.Unlock()
		if err != nil {
			k.Log.Error("restart node", "node", node, "err", err)
		}
		if again > 0 {
			k.restartIn(ctx, node, again)
		}
	})
}

// stay keeps the keeper alive until the command that makes the node has ended: that command asks for the node to be watched
// only at its end, and a keeper that is not the parent of the first process by then never learns its exit code.
func (k *Keeper) stay(ctx context.Context, node string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.ending || k.made[node] {
		return
	}
	k.made[node] = true
	k.busy++
	go func() {
		defer k.leave()
		up := k.nodes.Made(ctx, node)
		k.mu.Lock()
		delete(k.made, node)
		k.mu.Unlock()
		if up { // the command may have been killed before it asked
			if err := k.watch(ctx, node); err != nil {
				k.Log.Error("watch node", "node", node, "err", err)
			}
		}
	}()
}
