package agent

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"runtime/debug"
	"time"

	"berth/internal/host/membership"
	"berth/internal/node"
	"berth/internal/node/protect"
	"berth/internal/site/agentconf"
	"berth/internal/site/api/server"
	"berth/internal/site/audit"
	"berth/internal/site/hostapi"
	"berth/internal/site/iosync"
	"berth/internal/site/metrics"
	"berth/internal/site/slurm/reconcile"
	"berth/internal/site/store"
	"berth/internal/spec"
	"berth/internal/spec/roles"
	"berth/internal/sys/fork"
	"berth/internal/sys/layout"
	"berth/internal/sys/refuse"
)

// Serve is berthd, until ctx ends. ready is called once it answers, with the addresses that it listens at over TLS.
func Serve(ctx context.Context, c *agentconf.Config, l layout.Layout, log *slog.Logger, ready func(*Agent, []net.Addr)) error {
	debug.SetGCPercent(50) // the agent takes memory from nodes, and works little
	release, err := hold(c, l)
	if err != nil {
		return err
	}
	defer release()
	s, err := openState(ctx, c, log)
	if ctx.Err() != nil && errors.Is(err, context.Canceled) {
		return nil // it was told to end while it started
	}
	if err != nil {
		return err
	}
	defer s.close()
	host := hostapi.Open(l, fork.Berth())
	a := New(c, l, host.Berth, s, log)
	a.claims.Servers, a.claims.Away = a.fileServers, a.hostsAway
	a.claims.Stale = func(ctx context.Context) string { return a.staleWithin(ctx, membership.Fresh) }
	acts, err := audit.Open(l.Audit())
	if err != nil {
		return err
	}
	defer acts.Close()
	acts.Mirror(audit.SystemLog)
	answers := &server.Server{Host: &bounded{host, a}, Site: a, Audit: acts.Keep, Spent: acts.Spent, Reports: a.reports()}
	if a.signer != nil {
		answers.Renew = server.Renewal(a.signer, acts.Keep)
	}
	d := Doors{Handler: answers.Handler(), Beside: map[string]func(context.Context) error{
		"certificates": a.keepCertificates,
		"file systems": a.serveFilesystems,
		"allocator":    a.seekOffice,
		"slurm":        (&reconcile.Host{Name: c.Host, Slots: c.Slots, Layout: l, Nodes: host, Log: log}).Run,
	}}
	if s.err != nil {
		d.Beside["cluster state"] = func(ctx context.Context) error {
			select {
			case <-ctx.Done():
				return nil
			case err := <-s.err:
				return err
			}
		}
	}
	m := metrics.New(metrics.Sources{Nodes: a.nodes, Services: protect.New(l), Store: s, Log: log})
	d.Handler = m.Count(d.Handler)
	if c.Metrics != "" {
		d.Beside["metrics"] = func(ctx context.Context) error { return m.Serve(ctx, c.Metrics) }
	}
	return a.Run(ctx, d, func(at []net.Addr) { ready(a, at) })
}

// bounded is this host as the site may use it: a drained or full one takes no new nodes.
type bounded struct {
	*hostapi.Host

	agent *Agent
}

// Apply implements server.Host.
func (b *bounded) Apply(ctx context.Context, file string, text []byte, restart bool) ([]*node.Outcome, error) {
	nodes, err := spec.Parse(file, text)
	if err == nil {
		for _, n := range nodes {
			done, err := b.agent.take(n.Name)
			if err != nil {
				return nil, err
			}
			defer done()
		}
	}
	return b.Host.Apply(ctx, file, text, restart) // it says what is wrong with the text
}

// ApplyTemplate implements server.Host.
func (b *bounded) ApplyTemplate(ctx context.Context, who roles.Who, template, name string, parameters map[string]any, hold time.Duration) (*node.Outcome, error) {
	done, err := b.agent.take(name)
	if err != nil {
		return nil, err
	}
	defer done()
	return b.Host.ApplyTemplate(ctx, who, template, name, parameters, hold)
}

// Leave takes this host out of its site.
func Leave(ctx context.Context, c *agentconf.Config, l layout.Layout, log *slog.Logger) error {
	release, err := hold(c, l)
	if err != nil {
		return err
	}
	defer release()
	s, err := openState(ctx, c, log)
	if err != nil {
		return err
	}
	defer s.close()
	a := New(c, l, hostapi.Open(l, fork.Berth()).Berth, s, log)
	names, err := a.nodes.Names()
	if err != nil {
		return err
	}
	if len(names) > 0 {
		return refuse.Busyf("host %s has %d nodes, as %s: berth rm removes them", c.Host, len(names), names[0])
	}
	// A session that a killed agent left must not keep the host alive in the site for ttl.
	if _, err := s.Commit(ctx, nil, []store.Op{{Key: store.Key(store.Hosts, c.Host), Delete: true}}); err != nil {
		return a.refusal(err)
	}
	if err := a.Forget(ctx, c.Host); err != nil && refuse.KindOf(err) != refuse.NotFound { // done before, by a command that was killed
		return err
	}
	if err := resumeStopped(l); err != nil {
		return err
	}
	if err := iosync.Sweep(l, nil, log); err != nil { // processes in the groups are moved out, and go on
		return err
	}
	return membership.Leave(l)
}
