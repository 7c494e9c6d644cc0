package agent

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/coreos/go-systemd/v22/daemon"

	"berth/internal/site/api/server"
	"berth/internal/site/listen"
)

// farewell is how long requests that are being answered may go on when the agent ends.
const farewell = 3 * time.Second

// Doors has the handlers for the agent's sockets.
type Doors struct {
	Handler http.Handler
	Beside  map[string]func(context.Context) error // runs until its context ends: other work for the site
}

// Run is the agent's life, until ctx ends. The caller holds the agent's lock. Ready is called when it answers, with the addresses that it listens at over TLS.
func (a *Agent) Run(ctx context.Context, d Doors, ready func(at []net.Addr)) error {
	unix, err := a.listenUnix()
	if err != nil {
		return err
	}
	inner, end := context.WithCancel(ctx)
	defer end()
	more, err := a.listenTLS(inner)
	if err != nil {
		unix.Close()
		return err
	}
	listeners, at := []net.Listener{listen.Bound(unix, server.MostConnections, 0)}, []net.Addr{}
	for _, l := range more {
		listeners, at = append(listeners, l), append(at, l.Addr())
	}
	var all sync.WaitGroup
	fails := make(chan error, 1)
	start := func(what string, f func(context.Context) error) {
		all.Go(func() {
			if err := f(inner); err != nil && inner.Err() == nil {
				a.log.Error("a part of the agent ended", "part", what, "err", err)
				select {
				case fails <- fmt.Errorf("%s: %w", what, err):
				default:
				}
			}
		})
	}
	answers := server.HTTP(d.Handler)
	answers.BaseContext = func(net.Listener) context.Context { return inner }
	for _, l := range listeners {
		all.Go(func() { _ = answers.Serve(l) })
	}
	start("events of nodes", a.followEvents)
	start("folders of nodes", a.followFolders)
	start("view of the site", func(ctx context.Context) error { return a.view.follow(ctx, a.store) })
	start("place in the site", func(ctx context.Context) error { a.attend(ctx); return nil })
	claiming := make(chan struct{})
	start("claims", func(ctx context.Context) error { return a.claim(ctx, func() { close(claiming) }) })
	start("watchdog", func(ctx context.Context) error { a.watchdog(ctx); return nil })
	start("repair", a.repair)
	for what, f := range d.Beside {
		start(what, f)
	}
	select {
	case <-claiming: // a command that comes once systemd knows that the agent is ready can claim
		a.say(daemon.SdNotifyReady)
		ready(at)
	case <-inner.Done():
	case err = <-fails:
	}
	if err == nil {
		select {
		case <-ctx.Done():
		case err = <-fails:
		}
	}
	a.say(daemon.SdNotifyStopping)
	last, cancel := context.WithTimeout(context.Background(), farewell)
	defer cancel()
	stopped := answers.Shutdown(last)
	end()
	if stopped != nil {
		stopped = answers.Close()
	}
	all.Wait()
	return errors.Join(err, stopped)
}

// repair completes or undoes the unfinished work of killed agents and commands, and starts the keeper where nodes run without
// one.
func (a *Agent) repair(ctx context.Context) error {
	did, err := a.nodes.Repair(ctx)
	for _, d := range did {
		a.log.Info("repaired", "node", d.Node, "did", d.Did)
		a.dirt.add(d.Node)
	}
	if err != nil && ctx.Err() == nil {
		a.log.Warn("what killed commands left is not all repaired; berth repair says more", "err", err)
	}
	return nil
}
