package claims

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"time"

	"berth/internal/host/membership"
	"berth/internal/site/listen"
	"berth/internal/sys/refuse"
)

// Listen opens the socket on which commands of this host claim. Only root reaches it.
func (c *Claims) Listen() (net.Listener, error) {
	path := c.Layout.SiteSocket()
	if err := os.MkdirAll(c.Layout.Run, 0o755); err != nil {
		return nil, fmt.Errorf("make the folder of the claims' socket: %w", err)
	}
	made := path + ".new"
	_ = os.Remove(made)
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: made, Net: "unix"})
	if err != nil {
		return nil, fmt.Errorf("listen for claims: %w", err)
	}
	l.SetUnlinkOnClose(false)
	if err = os.Chmod(made, 0o600); err == nil {
		err = os.Rename(made, path) // no process can open it before it is closed to others
	}
	if err != nil {
		l.Close()
		return nil, fmt.Errorf("listen for claims: %w", err)
	}
	return l, nil
}

// Serve answers commands until ctx ends.
func (c *Claims) Serve(ctx context.Context, l net.Listener) {
	stop := context.AfterFunc(ctx, func() { l.Close() })
	defer stop()
	listen.Serve(l, c.log, func(conn net.Conn) { c.answer(ctx, conn) })
}

// longest is how many bytes a request may have: a node has at most some tens of things.
const longest = 1 << 16

// answer answers one request.
func (c *Claims) answer(ctx context.Context, conn net.Conn) {
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(membership.Patience))
	ctx, cancel := context.WithTimeout(ctx, membership.Patience)
	defer cancel()
	var r membership.Request
	if err := json.NewDecoder(io.LimitReader(conn, longest)).Decode(&r); err != nil {
		c.log("a claim that cannot be read: %v", err)
		return
	}
	var err error
	var servers []membership.Server
	var gone []string
	switch r.Do {
	case "claim":
		err = c.Claim(ctx, r.Node, r.Things)
	case "release":
		err = c.Release(ctx, r.Node, r.Things)
	case "follow":
		if c.Stale != nil {
			if why := c.Stale(ctx); why != "" {
				err = errors.New(why)
			}
		}
		if c.Away != nil {
			gone = c.Away()
		}
	case "servers":
		if c.Servers != nil {
			servers, err = c.Servers(r.Filesystems)
		}
	default:
		err = refuse.Invalidf("the agent cannot %q: berth and berthd are of different versions", r.Do)
	}
	answer := said(err)
	answer.Servers, answer.Away = servers, gone
	if err := json.NewEncoder(conn).Encode(answer); err != nil {
		c.log("node %s: the answer to its %s does not reach the command: %v", r.Node, r.Do, err)
	}
}

// said turns an error into an answer.
func said(err error) membership.Answer {
	if err == nil {
		return membership.Answer{}
	}
	if taken, ok := errors.AsType[*membership.Taken](err); ok {
		return membership.Answer{Taken: &taken.Thing, By: &taken.By}
	}
	if r, ok := errors.AsType[*refuse.Error](err); ok {
		return membership.Answer{Kind: r.Kind, What: r.What, Remedy: r.Remedy}
	}
	return membership.Answer{Kind: refuse.Failed, What: err.Error()}
}
