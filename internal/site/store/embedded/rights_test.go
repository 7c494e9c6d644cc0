package embedded_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"berth/internal/site/store"
	"berth/internal/site/store/embedded"
	"berth/internal/site/store/etcd"
	"berth/test/testkit"
)

// authority is a small authority of certificates.
type authority struct {
	dir    string
	cert   *x509.Certificate
	key    *ecdsa.PrivateKey
	issued int64
}

func must[T any](t *testing.T) func(T, error) T {
	t.Helper()
	return func(v T, err error) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

// issue makes NAME.crt and NAME.key; the first one is the authority's own.
func (a *authority) issue(t *testing.T, name, role string) {
	t.Helper()
	key := must[*ecdsa.PrivateKey](t)(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))
	a.issued++
	c := &x509.Certificate{
		SerialNumber: big.NewInt(a.issued), Subject: pkix.Name{CommonName: name}, NotBefore: time.Now().Add(-time.Minute), NotAfter: time.Now().Add(time.Hour),
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		URIs: []*url.URL{must[*url.URL](t)(url.Parse("berth://role/" + role))}, KeyUsage: x509.KeyUsageDigitalSignature,
	}
	if a.cert == nil {
		c.IsCA, c.BasicConstraintsValid, c.KeyUsage = true, true, x509.KeyUsageCertSign|x509.KeyUsageCRLSign
		a.cert, a.key = c, key
	}
	der := must[[]byte](t)(x509.CreateCertificate(rand.Reader, c, a.cert, &key.PublicKey, a.key))
	if c == a.cert {
		a.cert = must[*x509.Certificate](t)(x509.ParseCertificate(der))
	}
	secret := must[[]byte](t)(x509.MarshalPKCS8PrivateKey(key))
	a.write(t, name+".crt", pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))
	a.write(t, name+".key", pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: secret}))
}

func (a *authority) write(t *testing.T, name string, text []byte) {
	t.Helper()
	if err := os.WriteFile(a.path(name), text, 0o600); err != nil {
		t.Fatal(err)
	}
}

func (a *authority) path(name string) string { return filepath.Join(a.dir, name) }

// as makes a client that shows a certificate.
func (a *authority) as(t *testing.T, name, endpoint string) *etcd.Store {
	t.Helper()
	pool := x509.NewCertPool()
	pool.AddCert(a.cert)
	conf := &tls.Config{MinVersion: tls.VersionTLS13, RootCAs: pool}
	if name != "" {
		conf.Certificates = []tls.Certificate{must[tls.Certificate](t)(tls.LoadX509KeyPair(a.path(name+".crt"), a.path(name+".key")))}
	}
	return client(t, etcd.Config{Endpoints: []string{endpoint}, TLS: conf})
}

// web makes a client of HTTP that shows a certificate.
func (a *authority) web(t *testing.T, name string) *http.Client {
	t.Helper()
	pool := x509.NewCertPool()
	pool.AddCert(a.cert)
	pair := must[tls.Certificate](t)(tls.LoadX509KeyPair(a.path(name+".crt"), a.path(name+".key")))
	conf := &tls.Config{MinVersion: tls.VersionTLS13, RootCAs: pool, Certificates: []tls.Certificate{pair}}
	return &http.Client{Timeout: 2 * time.Second, Transport: &http.Transport{TLSClientConfig: conf, DisableKeepAlives: true}}
}

// TestRights: hosts reach an embedded etcd by their certificates, write what is theirs and the claims, and read all; nobody else
// reaches it.
func TestRights(t *testing.T) {
	t.Parallel()
	ca := &authority{dir: t.TempDir()}
	ca.issue(t, "ca", "ca")
	ca.issue(t, "a", "host")
	ca.issue(t, "b", "host")
	ca.issue(t, "gone", "host")
	ca.issue(t, "operator", "operator")
	ca.issue(t, "root", "host")
	var revoked atomic.Value
	revoked.Store("")
	s, own := serve(t, embedded.Config{
		Dir: testkit.Dir(t, ""), Listen: "127.0.0.1:0", CA: ca.path("ca.crt"), Cert: ca.path("a.crt"), Key: ca.path("a.key"),
		Allowed: func(c *x509.Certificate) error {
			if c.URIs[0].String() != "berth://role/host" {
				return fmt.Errorf("%s is no host", c.Subject.CommonName)
			}
			if c.Subject.CommonName == revoked.Load() {
				return errors.New("revoked")
			}
			return nil
		},
	})
	defer s.Close()
	defer own.Close()
	endpoint := "https://" + s.Addr()
	b := ca.as(t, "b", endpoint)
	if err := b.Session(t.Context(), time.Minute); err != nil {
		t.Fatal(err)
	}
	write := func(s store.Store, key string, lease bool) error {
		_, err := s.Commit(t.Context(), []store.Guard{{Key: key}}, []store.Op{{Key: key, Value: []byte("{}"), Lease: lease}})
		return err
	}
	for _, key := range []string{store.Hosts + "b", store.Members + "b", store.Nodes + "b/n1", store.Claims + "name/n1"} {
		if err := write(b, key, key == store.Hosts+"b"); err != nil {
			t.Errorf("host b writes %s: %v", key, err)
		}
	}
	for _, key := range []string{store.Hosts + "a", store.Hosts + "bb", store.Members + "a", store.Nodes + "a/n1", store.IO + "x/n1", "/elsewhere"} {
		if err := write(b, key, false); !errors.Is(err, store.ErrRefused) {
			t.Errorf("host b writes %s: %v", key, err)
		}
		if err := write(own, key, false); err != nil {
			t.Errorf("the host that keeps the store writes %s: %v", key, err)
		}
	}
	if all, _, err := b.List(t.Context(), store.Root); err != nil || len(all) != 9 {
		t.Errorf("host b reads %d entries, %v", len(all), err)
	}
	if err := b.Protect(t.Context(), "x"); !errors.Is(err, store.ErrRefused) {
		t.Errorf("host b administers: %v", err)
	}
	if err := b.Backup(t.Context(), filepath.Join(t.TempDir(), "backup")); err == nil {
		t.Error("host b takes the whole database")
	}
	if r, err := ca.web(t, "b").Get(endpoint + "/metrics"); err == nil {
		r.Body.Close()
		t.Errorf("etcd's metrics are told to other hosts: %s", r.Status)
	}
	gone := ca.as(t, "gone", endpoint)
	_, now, err := gone.List(t.Context(), store.Claims)
	if err != nil {
		t.Fatal(err)
	}
	seen := must[<-chan store.Batch](t)(gone.Watch(t.Context(), store.Claims, now))
	if err := write(b, store.Claims+"name/n2", false); err != nil {
		t.Fatal(err)
	}
	if c := <-seen; c.Err != nil {
		t.Fatal(c.Err)
	}
	revoked.Store("gone")
	if err := write(gone, store.Claims+"name/n3", false); err == nil {
		t.Error("a host that was revoked while it is connected writes")
	}
	if err := write(b, store.Claims+"name/n4", false); err != nil {
		t.Fatal(err)
	}
	select {
	case c, more := <-seen:
		if more && c.Err == nil {
			t.Errorf("a host that was revoked while it watches sees %+v", c)
		}
	case <-time.After(time.Second):
	}
	for _, name := range []string{"operator", "root", "gone", ""} {
		if _, _, err := ca.as(t, name, endpoint).List(t.Context(), store.Root); err == nil {
			t.Errorf("%q reads", name)
		} else {
			t.Logf("%q: %v", name, err)
		}
	}
	if _, _, err := client(t, etcd.Config{Endpoints: []string{"http://" + s.Addr()}}).List(t.Context(), store.Root); err == nil {
		t.Error("without TLS one reads")
	}
}
