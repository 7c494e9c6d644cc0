package agent

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"

	"berth/internal/site/agentconf"
	"berth/internal/site/certs"
	"berth/internal/site/store"
	"berth/internal/site/store/embedded"
	"berth/internal/site/store/etcd"
	"berth/internal/sys/refuse"
)

// state is the site's store as this host reaches it.
type state struct {
	store.Store

	end func()
	err <-chan error // the error that ends an embedded store early; nil: the store is elsewhere
}

func (s state) close() {
	s.Store.Close()
	if s.end != nil {
		s.end()
	}
}

// openState opens the store that the agent's file names. One that is elsewhere need not be there.
func openState(ctx context.Context, c *agentconf.Config, log *slog.Logger) (state, error) {
	if err := certs.Settle(c.Certs); err != nil {
		return state{}, err
	}
	if c.Store.Embedded == nil {
		s, err := openElsewhere(c)
		return state{Store: s}, err
	}
	e := embedded.Config{Dir: c.Store.Embedded.Dir, Listen: c.Store.Embedded.Listen, Log: func(format string, a ...any) {
		if text := fmt.Sprintf(format, a...); ctx.Err() != nil || strings.HasPrefix(text, "etcd: warn") { // it warns of each start and end
			log.Debug("cluster state", "says", text)
		} else {
			log.Warn("cluster state", "says", text)
		}
	}}
	if e.Listen != "" {
		e.CA, e.Cert, e.Key = filepath.Join(c.Certs, certs.CAFile), filepath.Join(c.Certs, certs.HostCert), filepath.Join(c.Certs, certs.HostKey)
		e.Allowed = certs.Hosts(c.Certs)
	}
	server, err := embedded.Start(ctx, e)
	if err != nil {
		return state{}, err
	}
	s, err := server.Client()
	if err != nil {
		server.Close()
		return state{}, err
	}
	return state{s, server.Close, server.Err()}, nil
}

// openElsewhere makes the client of a store that another host has.
func openElsewhere(c *agentconf.Config) (store.Store, error) {
	e := etcd.Config{Endpoints: c.Store.Endpoints, User: c.Store.User}
	if c.Store.Password != "" {
		text, err := os.ReadFile(c.Store.Password)
		if err != nil {
			return nil, refuse.Cannotf("write it, for root alone", "read the password of the store's user: %w", err)
		}
		e.Password = strings.TrimSpace(string(text))
	}
	if !strings.HasPrefix(c.Store.Endpoints[0], "https:") {
		return etcd.Open(e)
	}
	var err error
	if e.TLS, err = storeTLS(c); err != nil {
		return nil, err
	}
	return etcd.Open(e)
}

// storeTLS returns the TLS configuration for the store: how its endpoints are verified, and this host's certificate. The files are
// read at each connection: they are renewed while the agent runs.
func storeTLS(c *agentconf.Config) (*tls.Config, error) {
	ca := filepath.Join(c.Certs, certs.CAFile)
	own := func() (tls.Certificate, error) { return certs.Own(c.Certs) }
	if c.Store.CA != "" {
		ca = c.Store.CA
	}
	if c.Store.Cert != "" {
		own = func() (tls.Certificate, error) { return tls.LoadX509KeyPair(c.Store.Cert, c.Store.Key) }
	}
	text, err := os.ReadFile(ca)
	if err != nil {
		return nil, refuse.Cannotf("copy it here: docs/agent.md", "read the authority of the store's certificate: %w", err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(text) {
		return nil, refuse.Cannotf("copy it here again", "%s holds no certificate", ca)
	}
	if _, err := own(); err != nil {
		return nil, refuse.Cannotf("berth certs issue makes it, on the host that signs", "read this host's certificate: %w", err)
	}
	return &tls.Config{
		MinVersion: tls.VersionTLS13,
		RootCAs:    pool,
		GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
			pair, err := own()
			return &pair, err
		},
	}, nil
}
