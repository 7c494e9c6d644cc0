package agent

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/user"
	"path/filepath"
	"strconv"

	"berth/internal/site/agentconf"
	"berth/internal/site/api/server"
	"berth/internal/site/certs"
	"berth/internal/sys/layout"
	"berth/internal/sys/lock"
	"berth/internal/sys/refuse"
)

// hold makes this process the only agent of its layout, until the file is closed.
func hold(c *agentconf.Config, l layout.Layout) (*os.File, error) {
	if err := l.Make(); err != nil {
		return nil, err
	}
	f, err := os.OpenFile(c.Socket+".lock", os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("lock the agent's socket: %w", err)
	}
	mine, err := lock.TryVisible(f)
	if err == nil && !mine {
		err = refuse.Busyf("another berthd answers at %s", c.Socket)
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// listenUnix makes the unix socket, open to root and the group. The caller holds the agent's lock: a socket that is there is one of
// an agent that was killed.
func (a *Agent) listenUnix() (net.Listener, error) {
	if err := os.Remove(a.conf.Socket); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("make the agent's socket: %w", err)
	}
	l, err := net.Listen("unix", a.conf.Socket) // by its mode only root may connect
	if err != nil {
		return nil, fmt.Errorf("make the agent's socket: %w", err)
	}
	err = a.open()
	if err != nil {
		l.Close()
		return nil, fmt.Errorf("make the agent's socket: %w", err)
	}
	return l, nil
}

// open lets the group use the socket, if there is such a group.
func (a *Agent) open() error {
	g, err := user.LookupGroup(a.conf.Group)
	if _, none := errors.AsType[user.UnknownGroupError](err); none {
		return os.Chmod(a.conf.Socket, 0o600)
	}
	if err != nil {
		return err
	}
	gid, err := strconv.Atoi(g.Gid)
	if err != nil {
		return err
	}
	return errors.Join(os.Chown(a.conf.Socket, 0, gid), os.Chmod(a.conf.Socket, 0o660))
}

// listenTLS listens at the addresses of the agent's file; nowhere while the host has no certificate.
func (a *Agent) listenTLS(ctx context.Context) (all []net.Listener, err error) {
	if _, err := os.Stat(filepath.Join(a.conf.Certs, certs.HostCert)); errors.Is(err, fs.ErrNotExist) && len(a.conf.Listen) > 0 {
		a.log.Warn("this host has no certificate: the agent answers on its unix socket alone; docs/agent.md says how hosts get theirs", "folder", a.conf.Certs)
		return nil, nil
	}
	for _, address := range a.conf.Listen {
		l, err := server.Listen(ctx, address)
		if err == nil {
			var over net.Listener
			if over, err = certs.Listen(ctx, server.Limit(l, server.MostConnections), a.conf.Certs); err == nil {
				all = append(all, over)
				continue
			}
			l.Close()
		}
		for _, l := range all {
			l.Close()
		}
		if refuse.KindOf(err) == refuse.Failed {
			err = refuse.Cannotf("name another address or port in listen of the agent's file", "listen at %s: %w", address, err)
		}
		return nil, err
	}
	return all, nil
}
