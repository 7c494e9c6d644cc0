package registry

import (
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"berth/internal/sys/refuse"
	"berth/test/testkit"
)

// TestNothingOfThisMachine: a registry elsewhere makes the puller ask nothing of this machine, by no redirect and no name, not even its own; one that
// is named as of this machine may, and a proxy of the environment may be there.
func TestNothingOfThisMachine(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	testkit.Must(t, err)
	defer l.Close()
	address := l.Addr().String()
	_, port, err := net.SplitHostPort(address)
	testkit.Must(t, err)
	file := filepath.Join(t.TempDir(), "hosts")
	testkit.Must(t, os.WriteFile(file, []byte("127.0.0.1 other\n127.0.1.1\tstorage01.example storage01 # ours\n192.0.2.7 storage02\n"), 0o600))
	defer func(was string) { hostsFile = was }(hostsFile)
	hostsFile = file
	guardOf := func(registry string) *guard { return newGuard(nil, registry, false, nil) }
	works := func(g *guard, at string) {
		t.Helper()
		c, err := g.dial(t.Context(), "tcp", at)
		if err != nil {
			t.Fatalf("%s: %v", at, err)
		}
		c.Close()
	}
	refused := func(g *guard, at string) {
		t.Helper()
		if c, err := g.dial(t.Context(), "tcp", at); err == nil || !strings.Contains(err.Error(), "leads to "+at) || refuse.KindOf(err) != refuse.Cannot {
			t.Errorf("%s: %v, %v", at, c, err)
		}
	}
	elsewhere := guardOf("registry.example")
	for _, at := range []string{address, "localhost:" + port, "0.0.0.0:" + port, "[::ffff:127.0.0.1]:" + port, "169.254.169.254:80"} {
		refused(elsewhere, at)
	}
	refused(guardOf("storage02:5000"), address)
	refused(guardOf("LOCALHOST:"+port), "LOCALHOST:"+port) // to the guard a name as any other, which has an address of this machine
	for _, registry := range []string{"localhost:5000", "a.localhost", "127.0.0.1:5000", "0.0.0.0", "[::1]:5000", "[fe80::1]:5000", "storage01:5000", "Storage01.example"} {
		works(guardOf(registry), address)
	}

	elsewhere.proxies.Store(hostPort(&url.URL{Scheme: "http", Host: address}), true)
	works(elsewhere, address)
	another, err := net.Listen("tcp", "127.0.0.1:0")
	testkit.Must(t, err)
	defer another.Close()
	refused(elsewhere, another.Addr().String()) // of the proxy's host another port
	for text, want := range map[string]string{
		"http://proxy.example": "proxy.example:80", "https://proxy.example": "proxy.example:443", "socks5://[::1]": "[::1]:1080", "http://proxy.example:3128": "proxy.example:3128",
	} {
		if u, err := url.Parse(text); err != nil || hostPort(u) != want {
			t.Errorf("%s: %s, %v", text, hostPort(u), err)
		}
	}

	for registry, at := range map[string]string{"registry.example": address, "localhost": "registry.example", "192.0.2.1": address} {
		q, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+at+"/x", nil)
		testkit.Must(t, err)
		if _, err := guardOf(registry).RoundTrip(q); err == nil || !strings.Contains(err.Error(), "without TLS") {
			t.Errorf("plain HTTP to %s for %s: %v", at, registry, err)
		}
	}
}
