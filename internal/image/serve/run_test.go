package serve

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"berth/internal/sys/layout"
	"berth/internal/sys/refuse"
	"berth/test/pair"
	"berth/test/testkit"
)

// TestConnections counts connections: one more than an address may have is closed.
func TestConnections(t *testing.T) {
	plain, err := net.Listen("tcp", "127.0.0.1:0")
	testkit.Must(t, err)
	l := limited(plain)
	defer l.Close()
	accepted := make(chan net.Conn, 2*mostOfOne)
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			accepted <- c
		}
	}()
	dial := func() net.Conn {
		c, err := net.Dial("tcp", plain.Addr().String())
		testkit.Must(t, err)
		t.Cleanup(func() { c.Close() })
		return c
	}
	for range mostOfOne {
		dial()
	}
	held := []net.Conn{}
	for range mostOfOne {
		held = append(held, <-accepted)
	}
	if _, err := dial().Read(make([]byte, 1)); err == nil {
		t.Error("one connection too many is served")
	}
	held[0].Close()
	held[0].Close() // a second time gives no second place
	dial()
	held = append(held, <-accepted)
	for _, c := range held {
		c.Close()
	}
	if s := l.(*limiter); s.all != 0 || len(s.each) != 0 {
		t.Errorf("counted are %d, %v", s.all, s.each)
	}
}

// TestRunRefuses names addresses and certificates that cannot be.
func TestRunRefuses(t *testing.T) {
	cert, key := pair.Make(t)
	bad := filepath.Join(t.TempDir(), "bad.pem")
	testkit.Must(t, os.WriteFile(bad, []byte("no certificate"), 0o600))
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	testkit.Must(t, err)
	defer taken.Close()
	for _, c := range []struct {
		o     Options
		kind  refuse.Kind
		words string
	}{
		{Options{Listen: "0.0.0.0:0"}, refuse.Invalid, "by TLS only; give --tls-cert and --tls-key, or listen on the loopback"},
		{Options{Listen: ":0"}, refuse.Invalid, "by TLS only"},
		{Options{Listen: "[::]:0"}, refuse.Invalid, "by TLS only"},
		{Options{Listen: "192.0.2.1:5000"}, refuse.Invalid, "by TLS only"},
		{Options{Listen: "localhost:0"}, refuse.Invalid, "by TLS only"}, // a name: whoever answers for names would decide
		{Options{Listen: "5000"}, refuse.Invalid, "is not ADDRESS:PORT"},
		{Options{Listen: "127.0.0.1:x"}, refuse.Invalid, "listen on"},
		{Options{Listen: taken.Addr().String()}, refuse.Busy, "the port is in use"},
		{Options{Listen: ":0", Cert: cert}, refuse.Invalid, "belong together"},
		{Options{Listen: ":0", Key: key}, refuse.Invalid, "belong together"},
		{Options{Listen: ":0", Cert: cert, Key: bad}, refuse.Invalid, "bad.pem"},
		{Options{Listen: ":0", Cert: "/nowhere", Key: key}, refuse.Invalid, "/nowhere"},
		{Options{Listen: "127.0.0.1:0", ClientCA: cert}, refuse.Invalid, "--client-ca needs"},
		{Options{Listen: ":0", Cert: cert, Key: key, ClientCA: bad}, refuse.Invalid, "holds no certificate"},
	} {
		err := Run(t.Context(), layout.New(t.TempDir()), c.o, io.Discard, io.Discard)
		if refuse.KindOf(err) != c.kind || !strings.Contains(fmt.Sprint(err), c.words) {
			t.Errorf("%+v: %v, want kind %d with %q", c.o, err, c.kind, c.words)
		}
	}
}

// TestRun serves by TLS on all addresses, to clients with a certificate, until its context ends.
func TestRun(t *testing.T) {
	testkit.NeedsRoot(t)
	cert, key := pair.Make(t)
	ctx, cancel := context.WithCancel(t.Context())
	out, in := io.Pipe()
	ended := make(chan error, 1)
	go func() {
		ended <- Run(ctx, layout.New(t.TempDir()), Options{Listen: ":0", Cert: cert, Key: key, ClientCA: cert}, in, io.Discard)
	}()
	buf := make([]byte, 200)
	n, err := out.Read(buf)
	testkit.Must(t, err)
	said := string(buf[:n])
	_, port, _ := strings.Cut(strings.TrimSpace(said), "://[::]:")
	if !strings.HasPrefix(said, "serving 0 images at https://") {
		t.Errorf("it says %q", said)
	}
	own, err := tls.LoadX509KeyPair(cert, key)
	testkit.Must(t, err)
	for certs, want := range map[*tls.Certificate]bool{&own: true, nil: false} {
		c := &tls.Config{InsecureSkipVerify: true}
		if certs != nil {
			c.Certificates = []tls.Certificate{*certs}
		}
		client := &http.Client{Transport: &http.Transport{TLSClientConfig: c, DisableKeepAlives: true}}
		resp, err := client.Get("https://127.0.0.1:" + port + "/v2/")
		if err == nil {
			resp.Body.Close()
		}
		if (err == nil) != want {
			t.Errorf("with a certificate: %t: %v", want, err)
		}
	}
	cancel()
	testkit.Must(t, <-ended)
}
