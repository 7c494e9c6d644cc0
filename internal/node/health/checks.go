package health

import (
	"context"
	"log/slog"
	"math/rand/v2"
	"time"

	"berth/internal/node/events"
	"berth/internal/spec/vnode"
	"berth/internal/sys/fault"
	"berth/internal/sys/file"
	"berth/internal/sys/jsonfile"
	"berth/internal/sys/proc"
)

// Checks runs the checks of the nodes that a keeper watches. It implements keeper.Watcher.
type Checks struct {
	Log    *slog.Logger
	Work   func(f func()) // runs f, which shall not be cut off
	Events events.File
	// Of returns a node's check, when the node was started, and the file for what is found; nil: it has no check.
	Of func(node string) (check *vnode.Health, began time.Time, file string)
	// Check runs a node's check once.
	Check func(node string) Result
	// Paused reports whether a node is paused, or was at any time since.
	Paused func(node string, since time.Time) bool
	// Locked calls f with the node's lock, if this is still the first process of the node and it runs.
	Locked func(ctx context.Context, node string, first proc.ID, f func() error) (lives bool, err error)
	// End ends a node that is unhealthy; the keeper then sees its end.
	End func(ctx context.Context, node string, first proc.ID) error
}

// record is the file of what is found.
type record struct {
	Health
	Process proc.ID `json:"process"`        // the node's first process
	Told    string  `json:"told,omitempty"` // the state that was told last as an event
}

// Read returns what the checks of a node have found since its first process was started; nil if there is nothing.
func Read(path string, first proc.ID) *Health {
	if r, ok := read(path, first); ok {
		return &r.Health
	}
	return nil
}

// read reads a record. A damaged one counts as none: the next check writes it anew.
func read(path string, first proc.ID) (r record, ok bool) {
	err := jsonfile.File{Path: path, Is: "what the health checks found", Remedy: "the next check writes it anew"}.Read(&r)
	return r, err == nil && r.Process == first
}

// Watch implements keeper.Watcher.
func (c *Checks) Watch(ctx context.Context, node string, first proc.ID) {
	if check, began, path := c.Of(node); check != nil {
		n := &patient{c: c, node: node, first: first, check: check, began: began, path: path, log: c.Log.With("node", node)}
		go n.stay(ctx)
	}
}

// patient is a node whose health is checked.
type patient struct {
	c     *Checks
	node  string
	first proc.ID
	check *vnode.Health
	began time.Time
	path  string
	log   *slog.Logger
	record
}

// stay checks the node until it ends.
func (n *patient) stay(ctx context.Context) {
	every, _, _ := n.check.Times()
	wait := every
	found, known := read(n.path, n.first)
	if n.record = found; known { // by a keeper before this one
		wait = rand.N(every) // not the checks of all nodes at one moment
	} else {
		n.record = record{Health: Health{State: Starting, Since: n.began}, Process: n.first}
	}
	for lives := n.note(ctx, known); lives; wait = every {
		if n.State == Unhealthy && n.check.Restart {
			n.log.Warn("the node is unhealthy and is ended", "output", n.Output)
			if err := n.c.End(ctx, n.node, n.first); err != nil && ctx.Err() == nil {
				n.log.Error("end the unhealthy node", "err", err)
			}
		}
		timer := time.NewTimer(wait)
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case <-timer.C:
		}
		began := time.Now()
		if n.c.Paused(n.node, began) {
			continue
		}
		r := n.c.Check(n.node)
		if ctx.Err() != nil { // the node has ended, and the check with it
			return
		}
		if n.c.Paused(n.node, began) { // a check that was stopped on its way says nothing
			continue
		}
		next := n.Next(n.check, r.Failed, r.Output, n.began, time.Now())
		if next == n.Health {
			continue
		}
		if next.State != n.State {
			n.log.Info("the node's health", "is", next.State, "was", n.State, "output", next.Output)
		}
		n.Health = next
		lives = n.note(ctx, false)
	}
}

// note writes the result of a check, and tells of a state that was not told yet; again: a killed keeper may have told it. It
// reports whether the node runs.
func (n *patient) note(ctx context.Context, again bool) (lives bool) {
	n.c.Work(func() {
		var err error
		lives, err = n.c.Locked(ctx, n.node, n.first, func() error {
			if err := file.WriteJSONForBoot(n.path, n.record); err != nil {
				return err
			}
			fault.Point("health noted")
			if n.State == Starting || n.State == n.Told {
				return nil
			}
			if err := n.c.Events.Append([]events.Event{{Time: n.Since, Node: n.node, Event: n.State}}, again); err != nil {
				return err
			}
			n.Told = n.State
			return file.WriteJSONForBoot(n.path, n.record)
		})
		if err != nil && ctx.Err() == nil {
			n.log.Error("note the node's health", "err", err)
			lives = true // the next change is noted again
		}
	})
	return lives
}
