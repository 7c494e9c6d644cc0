package gateway

import (
	"context"
	"strings"
	"time"

	"berth/internal/sys/refuse"
	"berth/internal/sys/step"
)

// Cutter is a step whose mount may keep killed processes from their end: they wait for a file server that is away.
type Cutter interface {
	// Cut makes all requests to the server fail that wait now. Data that it has not acknowledged are lost.
	Cut()
}

// Loser is a step whose Undo may give up data that the node wrote last.
type Loser interface {
	// Lost says which data was lost, "" if none was. Call it after Undo.
	Lost() string
}

// Sharer is a step whose mount other nodes may use.
type Sharer interface {
	// Shared names the file server and the other nodes that use the mount now.
	Shared() (server string, nodes []string)
}

// cutAfter is how long killed processes may wait for a file server.
const cutAfter = 3 * time.Second

// Kill calls kill, which kills a node's processes and waits for their end. If they do not end because their file server is
// away, it cuts off the mounts of the steps, and calls kill again.
func Kill(ctx context.Context, steps []step.Step, kill func(context.Context) error) error {
	var cut []Cutter
	for _, s := range steps {
		if c, ok := s.(Cutter); ok {
			cut = append(cut, c)
		}
	}
	if len(cut) == 0 {
		return kill(ctx)
	}
	short, stop := context.WithTimeout(ctx, cutAfter)
	err := kill(short)
	stop()
	for tries := 0; err != nil && tries < 10 && ctx.Err() == nil; tries++ { // a process may make new requests before it ends
		for _, c := range cut {
			c.Cut()
		}
		short, stop := context.WithTimeout(ctx, time.Second)
		err = kill(short)
		stop()
	}
	if err == nil {
		return nil
	}
	for _, s := range steps {
		if s, ok := s.(Sharer); ok {
			if server, nodes := s.Shared(); len(nodes) > 0 {
				return refuse.Busyf("its processes wait for file server %s, whose mount node %s uses too, so its requests are not given up: "+
					"repeat when the server is back, or stop the nodes that use it: %w", server, strings.Join(nodes, ", "), err)
			}
		}
	}
	return err
}

// Lost returns the losses that the steps report after their Undo.
func Lost(steps []step.Step) []string {
	var all []string
	for _, s := range steps {
		if l, ok := s.(Loser); ok && l.Lost() != "" {
			all = append(all, l.Lost())
		}
	}
	return all
}
