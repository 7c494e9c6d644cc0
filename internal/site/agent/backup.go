package agent

import (
	"context"
	"errors"

	"berth/internal/site/agentconf"
	"berth/internal/site/store"
	"berth/internal/site/store/embedded"
	"berth/internal/sys/file"
	"berth/internal/sys/layout"
	"berth/internal/sys/refuse"
)

// Backup writes the content of the embedded cluster state to a file, while the agent runs.
func Backup(ctx context.Context, c *agentconf.Config, path string) error {
	if err := keepsState(c, "back up"); err != nil {
		return err
	}
	if err := file.CheckOutput(path); err != nil {
		return err
	}
	s, err := embedded.Open(c.Store.Embedded.Dir)
	if err != nil {
		return err
	}
	defer s.Close()
	if _, _, err := s.List(ctx, store.Members); errors.Is(err, store.ErrAway) {
		return refuse.Cannotf("start it: a backup is of a cluster state that runs", "berthd does not run, or keeps no cluster state in %s", c.Store.Embedded.Dir)
	}
	return s.Backup(ctx, path)
}

// Restore makes the embedded cluster state from a backup. The agent does not run.
func Restore(c *agentconf.Config, l layout.Layout, path string) error {
	if err := keepsState(c, "restore"); err != nil {
		return err
	}
	release, err := hold(c, l)
	if err != nil {
		return err
	}
	defer release()
	return embedded.Restore(path, c.Store.Embedded.Dir)
}

// keepsState refuses to work on a cluster state that this host does not keep.
func keepsState(c *agentconf.Config, what string) error {
	if c.Store.Embedded == nil {
		return refuse.Cannotf("do that on its host, or with etcdctl and etcdutl for an etcd of the site's own: docs/cluster-state.md",
			"this host keeps no cluster state to %s: its file names endpoints", what)
	}
	return nil
}
