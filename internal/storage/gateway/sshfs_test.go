package gateway_test

import (
	"context"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"

	"berth/internal/storage/gateway"
	"berth/internal/storage/gateway/gatewaytest"
	"berth/internal/storage/sftpserve"
	"berth/test/testkit"
)

// direct serves a folder as nobody by sshfs-direct, at a port of 127.0.0.1.
type direct struct {
	dir, port string
	end       func() // ends the server, and waits for its end
}

func (d *direct) start(t *testing.T) {
	t.Helper()
	s, err := sftpserve.New(sftpserve.Options{Dir: d.dir, User: "nobody", Allow: []string{"127.0.0.1"}, Listen: "127.0.0.1:" + d.port}, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ready, ended := make(chan net.Addr, 1), make(chan error, 1)
	go func() { ended <- s.Serve(ctx, func(a net.Addr) { ready <- a }) }()
	d.end = sync.OnceFunc(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(d.end)
	_, d.port, err = net.SplitHostPort((<-ready).String())
	if err != nil {
		t.Fatal(err)
	}
}

func (d *direct) restart(t *testing.T) {
	d.end()
	d.start(t)
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
	var last *direct
	served := func(folder func(*testing.T) gatewaytest.Source) func(t *testing.T) gatewaytest.Source {
		return func(t *testing.T) gatewaytest.Source {
			s := nobodys(t, folder(t))
			last = &direct{dir: filepath.Dir(s.Dir), port: "0"}
			last.start(t)
			s.Name, s.Options = "127.0.0.1:/source", map[string]string{"port": last.port}
			return s
		}
	}
	gatewaytest.Suite{
		Gateway: gateway.SSHFS{Direct: true}, Source: served(gatewaytest.Folder), Small: served(gatewaytest.SmallFolder), Files: files(t, 0), Kept: kept(),
		Restart: func(t *testing.T) { last.restart(t) },
	}.Run(t)
}

// kept is how many files the suite writes and reads back.
func kept() int {
	if testkit.Measures() {
		return 10_000
	}
	return 0
}

// files is how many files the suite makes: normal, or what scripts/evidence asks for.
func files(t *testing.T, normal int) int {
	t.Helper()
	text := os.Getenv("BERTH_GATEWAY_FILES")
	switch {
	case text == "" && normal == 0 && !testkit.Measures():
		return 2000 // more than a program lists at once
	case text == "":
		return normal
	}
	n, err := strconv.Atoi(text)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// TestDeviationsAreTold: docs/gateways.md has each deviation, in its words.
func TestDeviationsAreTold(t *testing.T) {
	text, err := os.ReadFile("../../../docs/gateways.md")
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
