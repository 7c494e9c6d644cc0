package netserve

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"
)

// Serve makes a node known by name on its bridges, and leads its published ports from the host's loopback to it.
type Serve struct {
	Places Places `json:"places"`
	Entry  Entry  `json:"entry"`
}

// Kind implements step.Step.
func (s *Serve) Kind() string { return "netserve.serve" }

func (s *Serve) String() string {
	var parts []string
	for _, n := range s.Entry.Names {
		parts = append(parts, fmt.Sprintf("%s known as %s on bridge %s", s.Entry.Node, strings.Join(n.Names, ", "), n.Bridge.Name))
	}
	for i, r := range s.Entry.Relays {
		if i == 4 && len(s.Entry.Relays) > 5 {
			parts = append(parts, fmt.Sprintf("and %d ports more", len(s.Entry.Relays)-i))
			break
		}
		parts = append(parts, fmt.Sprintf("%s/%s of the host leads to %s", r.At, r.Proto, r.To))
	}
	return strings.Join(parts, "; ")
}

// Do tells the process, and starts it if there is none.
func (s *Serve) Do(ctx context.Context) error {
	if err := s.Places.Set(ctx, &s.Entry); err != nil {
		return fmt.Errorf("serve the names and ports of node %s: %w", s.Entry.Node, err)
	}
	return nil
}

// Verify asks the process whether it knows the node.
func (s *Serve) Verify(context.Context) error {
	lacks, err := s.Places.Lacks([]string{s.Entry.Node})
	if err == nil && len(lacks) > 0 {
		err = errors.New("it does not know the node")
	}
	if err != nil {
		return fmt.Errorf("serve the names and ports of node %s: %w", s.Entry.Node, err)
	}
	return nil
}

// Undo ends the service for the node. The process ends with the last node.
func (s *Serve) Undo(ctx context.Context) error { return s.Places.Drop(ctx, s.Entry.Node) }

// Lacks returns those of the nodes that the process does not serve; all if there is no process.
func (p Places) Lacks(nodes []string) ([]string, error) {
	c, err := p.dial()
	if errors.Is(err, errGone) {
		return nodes, nil
	}
	if err != nil {
		return nil, err
	}
	defer c.Close()
	lacks, err := c.lacks(nodes)
	if errors.Is(err, errGone) {
		return nodes, nil
	}
	return lacks, err
}

func (c *client) lacks(nodes []string) (all []string, err error) {
	const most = 1000 // of a packet
	for len(nodes) > 0 {
		n := min(len(nodes), most)
		r, err := c.ask(request{Do: doLacks, Nodes: nodes[:n]})
		if err != nil {
			return nil, err
		}
		all, nodes = append(all, r.Nodes...), nodes[n:]
	}
	return all, nil
}

// Watch keeps the process serving these nodes until ctx ends: it calls again with those that are lacking, now and whenever the
// process has ended. again need not wait until they are served.
func (p Places) Watch(ctx context.Context, nodes func() []string, again func(ctx context.Context, lacking []string) error) {
	const firstWait, longestWait = 20 * time.Millisecond, time.Second // the longest where it ends again and again
	for wait := firstWait; ctx.Err() == nil; {
		began := time.Now()
		lacking, err := p.Lacks(nodes())
		if err == nil && len(lacking) > 0 {
			err = again(ctx, lacking)
		}
		if err == nil {
			_ = p.awaitEnd(ctx) // if it is not to be reached, look again
		}
		if time.Since(began) > longestWait {
			wait = firstWait
		}
		select {
		case <-ctx.Done():
		case <-time.After(wait):
		}
		wait = min(2*wait, longestWait)
	}
}

// awaitEnd waits until the process has ended; it keeps a connection open and nothing is ever sent on it.
func (p Places) awaitEnd(ctx context.Context) error {
	c, err := p.dial()
	if errors.Is(err, errGone) {
		return nil
	}
	if err != nil {
		return err
	}
	defer c.Close()
	defer context.AfterFunc(ctx, func() { c.Close() })()
	var r reply
	_, _ = receive(c.UnixConn, &r)
	return nil
}
