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

	"berth/internal/host/membership"
	"berth/internal/site/agentconf"
	"berth/internal/site/api/server"
	"berth/internal/site/certs"
	"berth/internal/site/listen"
	"berth/internal/sys/layout"
	"berth/internal/sys/lock"
	"berth/internal/sys/refuse"
)

// hold makes this process the only agent of its layout, and of its socket, until it is released. It refuses a host that has another name than the one
// it joined its site by.
func hold(c *agentconf.Config, l layout.Layout) (release func(), err error) {
	if err := l.Make(); err != nil {
		return nil, err
	}
	var held []*os.File
	release = func() {
		for _, f := range held {
			f.Close()
		}
	}
	for _, socket := range []string{l.AgentSocket(), c.Socket} {
		f, err := os.OpenFile(socket+".lock", os.O_RDWR|os.O_CREATE, 0o600)
		if err != nil {
			release()
			return nil, fmt.Errorf("lock the agent's socket: %w", err)
		}
		held = append(held, f)
		if len(held) == 2 && sameFile(held[0], f) {
			break // also by two names, as /run/berth and /var/run/berth
		}
		mine, err := lock.TryVisible(f)
		if err == nil && !mine {
			err = refuse.Busyf("another berthd answers for this host, at %s", socket)
		}
		if err != nil {
			release()
			return nil, err
		}
	}
	if err := sameName(c, l); err != nil {
		release()
		return nil, err
	}
	return release, nil
}

func sameFile(a, b *os.File) bool {
	of, err := a.Stat()
	is, another := b.Stat()
	return err == nil && another == nil && os.SameFile(of, is)
}

// sameName refuses a host that has another name than its site knows it by: it would be a second host there, with the nodes of the first.
func sameName(c *agentconf.Config, l layout.Layout) error {
	remedy := func(name string) string {
		return fmt.Sprintf("to keep the name, write host: %s into %s; to change it, keep it until the nodes are removed (berth rm) and berthd --leave is done, and have a certificate of the new name installed (berth certs issue %s)",
			name, agentconf.Path(l), c.Host)
	}
	m, err := membership.Read(l)
	if err == nil && m != nil && m.Host != c.Host {
		return refuse.Cannotf(remedy(m.Host), "this host is called %s now, and belongs to site %s as %s", c.Host, m.Site, m.Host)
	} // a damaged note is written anew
	if c.Local && c.Store.Embedded != nil && c.Store.Embedded.Listen == "" {
		return nil // nobody is shown the certificate
	}
	cert, err := certs.Current(c.Certs)
	if err == nil && cert.Subject.CommonName != c.Host {
		return refuse.Cannotf(remedy(cert.Subject.CommonName), "this host is called %s, and its certificate in %s is for %s", c.Host, c.Certs, cert.Subject.CommonName)
	} // who needs it says what is wrong with it
	return nil
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
		l, err := listen.TCP(ctx, address)
		if err == nil {
			var over net.Listener
			if over, err = certs.Listen(ctx, listen.Bound(l, server.MostConnections, 0), a.conf.Certs); err == nil {
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
