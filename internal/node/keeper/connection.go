package keeper

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"berth/internal/sys/fault"
	"berth/internal/sys/inherit"
	"berth/internal/sys/refuse"
)

// talk is one connection of a command.
type talk struct {
	conn *net.UnixConn
	wait waiting
}

// waiting is the event for which a connection waits, beside its next packet.
type waiting struct {
	Guard   string `json:"guard,omitempty"` // node that is abandoned when the connection closes
	Node    string `json:"node,omitempty"`  // node whose first process
	PID     int    `json:"pid,omitempty"`   // has this pid, for its end
	Upgrade bool   `json:"upgrade,omitempty"`
}

// accept takes connections. It begins work before it takes one, so that an upgrade finds each connection either waiting
// in the listening socket or known.
func (k *Keeper) accept(ctx context.Context) {
	conn, err := k.listener.SyscallConn()
	if err != nil {
		k.Log.Error("accept connections", "err", err)
		return
	}
	for {
		var fd int
		waited := conn.Read(func(listener uintptr) bool {
			mine := k.begin()
			if mine {
				defer k.finish()
			}
			fd, _, err = unix.Accept4(int(listener), unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK)
			if err == nil {
				k.take(ctx, fd, mine)
			}
			return !errors.Is(err, unix.EAGAIN)
		})
		if waited != nil {
			return // the keeper ends
		}
		if err != nil { // as without free descriptors
			k.Log.Error("accept a connection", "err", err)
			time.Sleep(100 * time.Millisecond)
		}
	}
}

// take takes up one connection, or closes it if the keeper ends.
func (k *Keeper) take(ctx context.Context, fd int, mine bool) {
	conn, err := connection(fd)
	if err != nil {
		k.Log.Error("accept a connection", "err", err)
		return
	}
	if !mine {
		conn.Close()
		return
	}
	k.hold(ctx, &talk{conn: conn})
}

func connection(fd int) (*net.UnixConn, error) {
	f := os.NewFile(uintptr(fd), "connection")
	defer f.Close()
	c, err := net.FileConn(f)
	if err != nil {
		return nil, err
	}
	conn, ok := c.(*net.UnixConn)
	if !ok {
		c.Close()
		return nil, fmt.Errorf("a connection of kind %T", c)
	}
	return conn, nil
}

// hold converses on a connection until it closes.
func (k *Keeper) hold(ctx context.Context, t *talk) {
	k.mu.Lock()
	k.talks[t] = false
	k.busy++
	k.mu.Unlock()
	go func() {
		defer k.leave()
		defer t.conn.Close()
		if !fromRoot(t.conn) {
			k.Log.Error("a connection that is not root's was closed")
		} else {
			k.converse(ctx, t)
		}
		k.mu.Lock()
		delete(k.talks, t)
		k.mu.Unlock()
	}()
}

func (k *Keeper) converse(ctx context.Context, t *talk) {
	switch {
	case t.wait.Guard != "":
		k.guard(ctx, t)
		return
	case t.wait.PID != 0:
		if err := k.tellExit(t); err != nil {
			return
		}
	case t.wait.Upgrade:
		k.answers(t)
		t.wait = waiting{}
		err := k.say(t, reply{})
		k.answered(t)
		if err != nil {
			return
		}
	}
	for k.hear(ctx, t) {
	}
}

// hear hears one packet and answers it; false if the connection is of no more use.
func (k *Keeper) hear(ctx context.Context, t *talk) bool {
	p, err := receive(t.conn, func() { k.answers(t) }, func() { k.answered(t) })
	if err != nil {
		k.answered(t)
		return false
	}
	defer p.close()
	req, r := understand(p)
	if req != nil {
		fault.Point("keeper heard " + req.Do)
		k.acts()
		if req.Do == doUpgrade {
			t.wait.Upgrade = true // answered by the new program, also if it is another connection's
			k.answered(t)
			err := k.upgrade(req.Hello, p.files) // returns only if it failed
			k.answers(t)
			defer k.answered(t)
			t.wait = waiting{}
			return k.say(t, replyOf(err)) == nil
		}
		if req.Do == doExit {
			t.wait = waiting{Node: req.Node, PID: req.PID}
			k.answered(t)
			return k.tellExit(t) == nil
		}
		r = k.answer(ctx, t, req, p.files)
		fault.Point("keeper did " + req.Do)
	}
	guards := req != nil && req.Do == doGuard
	if guards {
		t.wait.Guard = req.Node
	}
	err = k.say(t, r)
	k.answered(t)
	if guards && err == nil {
		k.guard(ctx, t)
	}
	return err == nil && !guards
}

// understand decodes a request. It is nil if there is nothing to do but to reply.
func understand(p *packet) (*request, reply) {
	g := p.greeting()
	if g.Hello != own() && g.Do != doUpgrade && (g.Accept == nil || *g.Accept != own()) {
		return nil, reply{Differs: true}
	}
	req := &request{}
	if err := Decode(p.data, req); err != nil {
		return nil, replyOf(explain(err, g.Hello))
	}
	return req, reply{}
}

func (k *Keeper) say(t *talk, r reply) error {
	r.Hello = own()
	return send(t.conn, r)
}

// answers marks a connection as being answered, which is work; answered ends that.
func (k *Keeper) answers(t *talk) {
	k.begin() // true: a connection keeps the keeper from ending
	k.mu.Lock()
	k.talks[t] = true
	k.mu.Unlock()
}

func (k *Keeper) answered(t *talk) {
	k.mu.Lock()
	k.talks[t] = false
	k.mu.Unlock()
	k.finish()
}

func (k *Keeper) answer(ctx context.Context, t *talk, req *request, files []*os.File) reply {
	switch req.Do {
	case doCreate:
		return replyOf(k.create(ctx, t, req, files))
	case doWatch:
		return replyOf(k.watch(ctx, req.Node))
	case doFlush:
		k.Logs.Flush(req.Node, logWait)
		return reply{}
	case doEndLog:
		k.Logs.Finish(req.Node, logWait)
		return reply{}
	case doGuard:
		return reply{}
	}
	return replyOf(fmt.Errorf("the keeper does not know %q", req.Do))
}

// create starts a runtime for a command, which goes on when the node's first process exists.
func (k *Keeper) create(ctx context.Context, t *talk, req *request, files []*os.File) error {
	if len(req.Launch) == 0 || len(files) != 4 {
		return errors.New("create needs a launch and four files")
	}
	if err := inherit.Free(); err != nil { // Open has said so, and went on for the nodes that run
		return refuse.Cannotf("kill the keeper; the next command starts one, but exit codes of nodes that run now are lost", "the keeper starts no nodes: %w", err)
	}
	// The runtime keeps the connection open too: if the keeper is killed, the asker waits for the runtime's end.
	line, err := t.conn.File()
	if err != nil {
		return err
	}
	defer func() {
		_ = unix.SetNonblock(int(line.Fd()), true) // handing it on made the connection a blocking one
		line.Close()
	}()
	// The first words of a node that ends at once are not lost: the keeper holds the pipe to its log from here on.
	if err := k.Logs.Open(req.Node, k.nodes.Log(req.Node)); err != nil {
		return err
	}
	err = k.nodes.Launch(ctx, req.Node, req.Launch, [4]*os.File(files), line)
	k.stay(ctx, req.Node)
	return err
}

// tellExit waits until the process that a connection asked about has ended, and says how.
func (k *Keeper) tellExit(t *talk) error {
	k.mu.Lock()
	w := k.watched[t.wait.Node]
	k.mu.Unlock()
	r := reply{}
	if w != nil && w.pid == t.wait.PID {
		<-w.ended
		r = reply{Status: uint32(w.Status), Known: w.Known, After: w.After}
	}
	k.answers(t)
	defer k.answered(t)
	t.wait = waiting{}
	return k.say(t, r)
}

// guard waits for the end of the command that the connection belongs to, then has the node removed that the command left.
func (k *Keeper) guard(ctx context.Context, t *talk) {
	p, err := receive(t.conn, func() { k.answers(t) }, func() { k.answered(t) })
	defer k.answered(t)
	if err == nil {
		p.close()
	}
	if err := k.nodes.Abandoned(ctx, t.wait.Guard); err != nil {
		k.Log.Error("remove the node of a berth run that was killed", "node", t.wait.Guard, "err", err)
	}
}
