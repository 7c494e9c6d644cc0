package agent

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"berth/internal/site/agentconf"
	"berth/internal/site/certs"
	"berth/internal/site/store"
	"berth/test/testkit"
)

// TestOtherHosts: with the files that the host that signs gives out, another host reaches an embedded store over TLS; once it is
// revoked it does not, over the connection that it has, and neither does anybody where the list of revoked certificates is missing.
func TestOtherHosts(t *testing.T) {
	dir := testkit.Dir(t, "") // short enough for a socket
	signer, err := certs.Init(filepath.Join(dir, "signer"))
	if err != nil {
		t.Fatal(err)
	}
	address := testkit.Free(t, 1)[0]
	ip, _, _ := strings.Cut(address, ":")
	conf := func(host string) *agentconf.Config {
		b, err := signer.IssueHost(t.Context(), host, []string{ip})
		if err != nil {
			t.Fatal(err)
		}
		c := &agentconf.Config{Host: host, Certs: filepath.Join(dir, host), Store: agentconf.Store{Endpoints: []string{"https://" + address}}}
		if err := certs.Install(c.Certs, b); err != nil {
			t.Fatal(err)
		}
		return c
	}
	keeps := conf("a")
	keeps.Store = agentconf.Store{Embedded: &agentconf.Embedded{Dir: filepath.Join(dir, "s"), Listen: address}}
	start := func(c *agentconf.Config) state {
		s, err := openState(context.WithoutCancel(t.Context()), c, slog.New(slog.NewTextHandler(t.Output(), nil)))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(s.close)
		return s
	}
	a := start(keeps)
	b, c := start(conf("b")), start(conf("c"))
	tell := func(s state, host string) error {
		_, err := s.Commit(t.Context(), nil, []store.Op{{Key: store.Hosts + host, Value: []byte("{}"), Lease: true}})
		return err
	}
	for host, s := range map[string]state{"b": b, "c": c} {
		if err := s.Session(t.Context(), map[string]time.Duration{"b": 5 * time.Second, "c": testkit.Bound()}[host]); err != nil {
			t.Fatal(err)
		}
		if err := tell(s, host); err != nil {
			t.Fatalf("host %s tells of itself: %v", host, err)
		}
	}
	if _, err := signer.Revoke(t.Context(), "b"); err != nil {
		t.Fatal(err)
	}
	list, err := signer.Revoked()
	if err != nil {
		t.Fatal(err)
	}
	if did, err := certs.Update(keeps.Certs, list); err != nil || !did {
		t.Fatal(did, err)
	}
	if err := tell(b, "b"); err == nil {
		t.Error("a revoked host tells of itself")
	}
	if err := tell(c, "c"); err != nil {
		t.Errorf("another host: %v", err)
	}
	testkit.Eventually(t, "of a revoked host nobody says that it lives", func() bool {
		all, _, err := a.List(t.Context(), store.Hosts)
		if err != nil {
			t.Fatal(err)
		}
		return len(all) == 1 && all[0].Key == store.Hosts+"c"
	})
	if err := os.Remove(filepath.Join(keeps.Certs, certs.RevokedFile)); err != nil {
		t.Fatal(err)
	}
	if err := tell(c, "c"); err == nil {
		t.Error("without a list of what is revoked a host is let in")
	}
}
