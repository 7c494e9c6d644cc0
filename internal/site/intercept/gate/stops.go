package gate

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"berth/internal/sys/fault"
	"berth/internal/sys/file"
	"berth/internal/sys/proc"
)

// stop is a process that was stopped and is to be continued; event is an event of the program (gate.bpf.c).
type (
	stop struct {
		Start uint64 // of the process, in ns after boot
		At    uint64 // when it was stopped, in ns of the monotonic clock
	}
	event struct {
		Stop                   stop
		Kind, PID, Node, Other uint32
	}
)

// The kinds of events (gate.bpf.c).
const (
	isStopped = iota
	isSeveral
	isOfKernel
)

// id is a process, as /proc has it.
func (s stop) id(pid uint32) proc.ID {
	const tick = 1e9 / 100 // of user space, in ns
	return proc.ID{PID: int(pid), Start: s.Start / tick}
}

// pause is how long a stopped process waits that could not be looked at.
const pause = 20 * time.Millisecond

// follow handles the program's events until the gate is closed. It reads all events, and notes all stopped processes, before it
// handles the next one: one takes a while, and the next agent must find all of them.
func (g *Gate) follow() {
	defer close(g.done)
	var queue, late []event
	var retry time.Time // of late
	for {
		if len(late) > 0 && !time.Now().Before(retry) {
			queue, late = append(queue, late...), nil
		}
		switch {
		case len(queue) > 0:
			g.events.SetDeadline(time.Unix(1, 0))
		case len(late) > 0:
			g.events.SetDeadline(retry)
		default:
			g.events.SetDeadline(time.Time{})
		}
		r, err := g.events.Read()
		switch {
		case err == nil:
			if e, ok := g.heard(r.RawSample); ok {
				queue = append(queue, e)
			}
			continue
		case errors.Is(err, os.ErrClosed):
			return
		case !errors.Is(err, os.ErrDeadlineExceeded):
			g.lose(fmt.Errorf("nothing is stopped any more, because nobody hears what is: %w", err))
			if err := sweeps(g.all.Maps["stopped"], 100*time.Millisecond); err != nil {
				g.of.Log.Error("a process stays stopped until the gate is closed", "err", err)
			}
			return
		case len(queue) == 0:
			continue
		}
		g.tellFull()
		e := queue[0]
		queue = queue[1:]
		if !g.handle(e) {
			if len(late) == 0 {
				retry = time.Now().Add(pause)
			}
			late = append(late, e)
		}
	}
}

// tellFull tells how many receives were not held because the events had no room for them.
func (g *Gate) tellFull() {
	var n uint64
	if err := g.all.Maps["numbers"].Lookup(fullNumber, &n); err != nil || n == g.full || g.whyLost() != nil { // which is worse
		return
	}
	g.full = n
	g.of.Groups.Wrong(0, fmt.Sprintf("%d receives of processes were not held at port %d: too many came at once; each process is stopped at its next one", n, g.of.Port))
}

// heard reads an event, and notes the process if it is stopped.
func (g *Gate) heard(sample []byte) (e event, ok bool) {
	if err := binary.Read(bytes.NewReader(sample), binary.NativeEndian, &e); err != nil {
		g.of.Log.Error("the gate tells what nobody reads", "err", err)
		return e, false
	}
	if e.Kind == isStopped {
		if err := note(g.of.Dir, e.Stop.id(e.PID)); err != nil { // it is one of three ways to find it
			g.of.Log.Warn("a stopped process is not noted for the next agent", "pid", e.PID, "err", err)
		}
	}
	return e, true
}

// handle handles an event. done is false if it is to be tried again.
func (g *Gate) handle(e event) (done bool) {
	switch e.Kind {
	case isStopped:
		return g.serve(e)
	case isSeveral:
		return g.several(e)
	case isOfKernel:
		g.of.Groups.Wrong(int(e.PID), fmt.Sprintf("a thread of the kernel serves nodes at port %d (%s), and cannot be stopped: use way network", g.of.Port, comm(int(e.PID))))
	}
	return true
}

// node is the name of the node with a number. ok is false if its group has gone since.
func (g *Gate) node(number uint32) (name string, ok bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	name, ok = g.table.names[number]
	return name, ok
}

// serve puts a stopped process into its node's group and continues it. done is false if it cannot be continued yet.
func (g *Gate) serve(e event) (done bool) {
	id := e.Stop.id(e.PID)
	p, err := id.Open()
	if err != nil {
		return g.unseen(e, err)
	}
	defer p.Close()
	fault.Point("process of a file server stopped")
	name, ok := g.node(e.Node)
	if ok {
		err = g.of.Groups.Put(name, id.PID)
		if g.isSeveral(p) { // that was told before this, when the process was in no group yet
			err = errors.Join(err, g.of.Groups.Back(name, id.PID))
		}
	}
	fault.Point("process of a file server in its group")
	if c := proc.Signal(p, unix.SIGCONT); c != nil && !errors.Is(c, unix.ESRCH) {
		g.of.Log.Error("a process stays stopped; trying again", "pid", e.PID, "err", c)
		return false
	}
	took := sinceBoot() - time.Duration(e.Stop.At)
	g.forget(e)
	if now, gone := proc.Of(id.PID); gone == nil && now.Start != id.Start && ok { // it ended, and another process has its number
		err = errors.Join(err, g.of.Groups.Back(name, id.PID))
	}
	if err != nil || !ok {
		g.again(p)
	}
	switch {
	case err == nil && g.failed[e.PID]:
		delete(g.failed, e.PID)
		g.of.Groups.Wrong(id.PID, "")
	case err != nil:
		g.failed[e.PID] = true
		g.of.Groups.Wrong(id.PID, fmt.Sprintf("process %d (%s) could not be put into the group of node %s: %v", id.PID, comm(id.PID), name, err))
	}
	g.count(took)
	g.of.Log.Debug("process serves a node", "pid", id.PID, "node", name, "stopped", took, "err", err)
	return true
}

// unseen is the turn of a process that cannot be opened: it has ended, or is tried again. After a while it is continued where it is.
func (g *Gate) unseen(e event, why error) (done bool) {
	id := e.Stop.id(e.PID)
	if gone(id) {
		g.forget(e)
		return true
	}
	if sinceBoot()-time.Duration(e.Stop.At) < time.Second || proceed(id) != nil {
		return false
	}
	g.forget(e)
	g.failed[e.PID] = true
	g.of.Groups.Wrong(id.PID, fmt.Sprintf("process %d (%s) was continued in no node's group: %v", id.PID, comm(id.PID), why))
	return true
}

// forget forgets that a process is stopped: it runs, or has ended.
func (g *Gate) forget(e event) {
	id := e.Stop.id(e.PID)
	if err := g.all.Maps["stopped"].Delete(e.PID); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
		g.of.Log.Error("a process that runs is kept as stopped", "pid", e.PID, "err", err)
	}
	if err := unnote(g.of.Dir, id); err != nil {
		g.of.Log.Error("a process that runs is noted as stopped", "pid", e.PID, "err", err)
	}
}

// isSeveral is whether the program found that a process serves more nodes than one.
func (g *Gate) isSeveral(p *os.File) bool {
	var of struct{ Node, Several uint32 }
	conn, err := p.SyscallConn()
	if err == nil {
		_ = conn.Control(func(fd uintptr) { err = g.all.Maps["processes"].Lookup(uint32(fd), &of) })
	}
	return err == nil && of.Several != 0
}

// count counts a stop.
func (g *Gate) count(took time.Duration) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.stops.Times++
	g.stops.All += took
	g.stops.Longest = max(g.stops.Longest, took)
}

// again makes the next receive of a process the first one.
func (g *Gate) again(p *os.File) {
	conn, err := p.SyscallConn()
	if err == nil {
		_ = conn.Control(func(fd uintptr) { err = g.all.Maps["processes"].Delete(uint32(fd)) })
	}
	if err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) && !errors.Is(err, unix.ESRCH) {
		g.of.Log.Error("a process is not stopped again", "err", err)
	}
}

// several takes a process that serves more nodes than one out of the group of the first: no node pays for another.
func (g *Gate) several(e event) (done bool) {
	id := e.Stop.id(e.PID)
	name, ok := g.node(e.Node)
	other, _ := g.node(e.Other)
	p, err := id.Open()
	if err != nil {
		return gone(id)
	}
	defer p.Close()
	if ok {
		err = g.of.Groups.Back(name, id.PID)
	}
	what := fmt.Sprintf("process %d (%s) serves nodes %s and %s at port %d: way gate is for servers that have a process a client; it is in no node's group",
		id.PID, comm(id.PID), name, other, g.of.Port)
	if err != nil {
		what += fmt.Sprintf(": it could not be taken out of that of %s: %v", name, err)
	}
	g.of.Log.Error(what)
	g.of.Groups.Wrong(id.PID, what)
	return true
}

// comm is the name of a process.
func comm(pid int) string { return file.Text(fmt.Sprintf("/proc/%d/comm", pid)) }

// sinceBoot is the kernel's monotonic clock.
func sinceBoot() time.Duration {
	var t unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_MONOTONIC, &t) // the kernel has it
	return time.Duration(t.Nano())
}
