package gateway_test

import (
	"context"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"berth/internal/gateway"
	"berth/internal/gateway/gatewaytest"
	"berth/internal/sftpserve"
)

// serveDirect serves a folder as nobody by sshfs-direct, at a port of 127.0.0.1.
func serveDirect(t *testing.T, dir string) (port string) {
	t.Helper()
	s, err := sftpserve.New(sftpserve.Options{Dir: dir, User: "nobody", Allow: []string{"127.0.0.1"}, Listen: "127.0.0.1:0"}, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ready, ended := make(chan net.Addr, 1), make(chan error, 1)
	go func() { ended <- s.Serve(ctx, func(a net.Addr) { ready <- a }) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	_, port, err = net.SplitHostPort((<-ready).String())
	if err != nil {
		t.Fatal(err)
	}
	return port
}

// nobodys gives a test folder to nobody.
func nobodys(t *testing.T, s gatewaytest.Source) gatewaytest.Source {
	t.Helper()
	for _, path := range []string{"", "/file", "/beneath"} {
		if err := os.Chown(s.Dir+path, 65534, 65534); err != nil {
			t.Fatal(err)
		}
	}
	s.Beneath, s.Owner = nil, 65534
	return s
}

func TestSSHFSDirect(t *testing.T) {
	served := func(folder func(*testing.T) gatewaytest.Source) func(t *testing.T) gatewaytest.Source {
		return func(t *testing.T) gatewaytest.Source {
			s := nobodys(t, folder(t))
			s.Name, s.Options = "127.0.0.1:/source", map[string]string{"port": serveDirect(t, filepath.Dir(s.Dir))}
			return s
		}
	}
	gatewaytest.Suite{
		Gateway: gateway.SSHFS{Direct: true}, Source: served(gatewaytest.Folder), Small: served(gatewaytest.SmallFolder), Files: 5000,
	}.Run(t)
}

// TestDeviationsAreTold: docs/gateways.md has each deviation, in its words.
func TestDeviationsAreTold(t *testing.T) {
	text, err := os.ReadFile("../../docs/gateways.md")
	if err != nil {
		t.Fatal(err)
	}
	for name, g := range gateway.All() {
		for _, d := range g.Deviations() {
			if !strings.Contains(strings.Join(strings.Fields(string(text)), " "), string(d)) {
				t.Errorf("docs/gateways.md does not say of %s: %s", name, d)
			}
		}
	}
}
