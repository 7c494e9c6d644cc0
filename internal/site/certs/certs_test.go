package certs

import (
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"berth/internal/spec/roles"
	"berth/internal/sys/refuse"
	"berth/test/testkit"
)

// site is an authority with a host that listens on the loopback and answers what it reads.
type site struct {
	signer  *Signer
	host    string // folder of the host
	address string
	who     chan roles.Who // of each accepted connection
}

func newSigner(t *testing.T) *Signer {
	t.Helper()
	s, err := Init(filepath.Join(t.TempDir(), "ca"))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func newSite(t *testing.T) *site {
	t.Helper()
	s := &site{signer: newSigner(t), host: t.TempDir(), who: make(chan roles.Who, 16)}
	install(t, s.host, must(s.signer.IssueHost(t.Context(), "node1", []string{"127.0.0.1"})))
	s.listen(t, s.host)
	return s
}

func must(b Bundle, err error) Bundle {
	if err != nil {
		panic(err)
	}
	return b
}

func install(t *testing.T, dir string, b Bundle) {
	t.Helper()
	if err := Install(dir, b); err != nil {
		t.Fatal(err)
	}
}

func (s *site) listen(t *testing.T, dir string) {
	t.Helper()
	plain, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l, err := Listen(t.Context(), plain, dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	s.address = plain.Addr().String()
	s.answer(t, l)
}

// answer sends back what connections of a listener say.
func (s *site) answer(t *testing.T, l net.Listener) {
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				if c.(*tls.Conn).HandshakeContext(t.Context()) == nil {
					who, _ := Identity(c.(*tls.Conn).ConnectionState().PeerCertificates[0])
					s.who <- who
					_, _ = io.Copy(c, c)
				}
			}()
		}
	}()
}

// user returns a folder with a certificate of a person.
func (s *site) user(t *testing.T, name string, role roles.Role) string {
	t.Helper()
	dir := t.TempDir()
	install(t, dir, must(s.signer.IssueUser(t.Context(), name, role, UserLife)))
	return dir
}

// speak connects and waits for an answer: with TLS 1.3 a client learns only then that the server refused it.
func speak(address string, config *tls.Config) (net.Conn, error) {
	c, err := tls.Dial("tcp", address, config)
	if err != nil {
		return nil, err
	}
	if err := echo(c); err != nil {
		c.Close()
		return nil, err
	}
	return c, nil
}

func echo(c net.Conn) error {
	_ = c.SetDeadline(time.Now().Add(testkit.Bound()))
	if _, err := c.Write([]byte("berth")); err != nil {
		return err
	}
	_, err := io.ReadFull(c, make([]byte, 5))
	return err
}

func (s *site) client(t *testing.T, dir string) *tls.Config {
	t.Helper()
	c, err := Client(dir, "node1:7611")
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func TestWhoIsLetIn(t *testing.T) {
	s := newSite(t)
	host2 := t.TempDir()
	install(t, host2, must(s.signer.IssueHost(t.Context(), "node2", nil)))
	for want, dir := range map[roles.Who]string{
		{Name: "ann", Role: roles.Admin, Via: roles.ViaTLS}:  s.user(t, "ann", roles.Admin),
		{Name: "slurm", Role: roles.Operator, Via: "tls"}:    s.user(t, "slurm", roles.Operator),
		{Name: "eve.x@site", Role: roles.Viewer, Via: "tls"}: s.user(t, "eve.x@site", roles.Viewer),
		{Name: "node2", Role: roles.Host, Via: "tls"}:        host2,
	} {
		c, err := speak(s.address, s.client(t, dir))
		if err != nil {
			t.Errorf("%s: %v", want, err)
			continue
		}
		if got := <-s.who; got != want {
			t.Errorf("the server sees %+v, not %+v", got, want)
		}
		if v := c.(*tls.Conn).ConnectionState().Version; v != tls.VersionTLS13 {
			t.Errorf("%s: TLS version %x", want, v)
		}
		c.Close()
	}
	byAddress, err := Client(s.user(t, "ann", roles.Admin), "127.0.0.1")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := speak(s.address, byAddress); err != nil {
		t.Errorf("by its address: %v", err)
	}
}

// forge signs a certificate past the checks of issue.
func forge(t *testing.T, s *Signer, change func(*x509.Certificate)) tls.Certificate {
	t.Helper()
	key, err := newKey()
	if err != nil {
		t.Fatal(err)
	}
	serial, err := newSerial()
	if err != nil {
		t.Fatal(err)
	}
	c := &x509.Certificate{
		SerialNumber: serial, Subject: pkix.Name{CommonName: "ann"}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth},
	}
	c.URIs = append(c.URIs, roleURI(roles.Admin))
	change(c)
	der, err := x509.CreateCertificate(nil, c, s.cert, key.Public(), s.key)
	if err != nil {
		t.Fatal(err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}

// TestWhoIsRefused connects with what must not be let in. Each attempt differs in one point from one that is let in.
func TestWhoIsRefused(t *testing.T) {
	s := newSite(t)
	foreign := newSigner(t)
	foreignUser := t.TempDir()
	install(t, foreignUser, must(foreign.IssueUser(t.Context(), "ann", roles.Admin, UserLife)))
	theirs, err := open(foreignUser).load()
	if err != nil {
		t.Fatal(err)
	}
	revoked := must(s.signer.IssueUser(t.Context(), "gone", roles.Admin, UserLife))
	goneDir := t.TempDir()
	install(t, goneDir, revoked)
	gone := s.client(t, goneDir)
	if _, err := s.signer.Revoke(t.Context(), "gone"); err != nil {
		t.Fatal(err)
	}
	crl, err := s.signer.Revoked()
	if err != nil {
		t.Fatal(err)
	}
	if changed, err := Update(s.host, crl); err != nil || !changed {
		t.Fatalf("update: %v, %v", changed, err)
	}
	with := func(change func(*x509.Certificate)) func(*tls.Config) {
		own := forge(t, s.signer, change)
		return func(c *tls.Config) {
			c.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &own, nil }
		}
	}
	ann := s.user(t, "ann", roles.Admin)
	for name, change := range map[string]func(*tls.Config){
		"no certificate": func(c *tls.Config) {
			c.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &tls.Certificate{}, nil }
		},
		"a foreign authority": func(c *tls.Config) {
			c.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &theirs.own, nil }
		},
		"revoked":                  func(c *tls.Config) { c.GetClientCertificate = gone.GetClientCertificate },
		"expired":                  with(func(c *x509.Certificate) { c.NotAfter = time.Now().Add(-time.Second) }),
		"not yet valid":            with(func(c *x509.Certificate) { c.NotBefore = time.Now().Add(10 * time.Minute) }),
		"no role":                  with(func(c *x509.Certificate) { c.URIs = nil }),
		"two roles":                with(func(c *x509.Certificate) { c.URIs = append(c.URIs, roleURI(roles.Viewer)) }),
		"an unknown one":           with(func(c *x509.Certificate) { c.URIs[0] = roleURI("root") }),
		"role in capital letters":  with(func(c *x509.Certificate) { c.URIs[0] = roleURI("ADMIN") }),
		"role of another scheme":   with(func(c *x509.Certificate) { c.URIs[0].Scheme = "http" }),
		"no name":                  with(func(c *x509.Certificate) { c.Subject = pkix.Name{} }),
		"a name with a line break": with(func(c *x509.Certificate) { c.Subject.CommonName = "ann\nadmin" }),
		"for servers alone":        with(func(c *x509.Certificate) { c.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth} }),
		"TLS 1.2":                  func(c *tls.Config) { c.MinVersion, c.MaxVersion = tls.VersionTLS12, tls.VersionTLS12 },
	} {
		config := s.client(t, ann)
		change(config)
		c, err := speak(s.address, config)
		if err == nil {
			t.Errorf("%s: let in", name)
			c.Close()
			continue
		}
		if e := Explain("node1", err); refuse.KindOf(e) != refuse.Cannot {
			t.Errorf("%s: refused without a remedy: %v", name, e)
		}
	}
	if c, err := speak(s.address, s.client(t, ann)); err != nil {
		t.Errorf("one without a fault is refused: %v", err)
	} else {
		c.Close()
	}
	if len(s.who) != 1 {
		t.Errorf("the server let in %d, not 1", len(s.who))
	}
}

// TestServersThatAreRefused connects to what is not the host that is meant.
func TestServersThatAreRefused(t *testing.T) {
	s := newSite(t)
	ann := s.user(t, "ann", roles.Admin)
	annOwn, err := open(ann).load()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Server(ann); err == nil || !strings.Contains(err.Error(), "not one of a host") {
		t.Errorf("a person's certificate serves: %v", err)
	}
	foreign := t.TempDir()
	install(t, foreign, must(newSigner(t).IssueHost(t.Context(), "node1", nil)))
	theirs, err := open(foreign).load()
	if err != nil {
		t.Fatal(err)
	}
	other := t.TempDir()
	install(t, other, must(s.signer.IssueHost(t.Context(), "node2", []string{"192.0.2.7"})))
	node2, err := open(other).load()
	if err != nil {
		t.Fatal(err)
	}
	for name, own := range map[string]tls.Certificate{
		"a person": annOwn.own, "a foreign authority": theirs.own, "another host": node2.own,
		"a host's names with a person's role": forge(t, s.signer, func(c *x509.Certificate) { c.DNSNames = []string{"node1"} }),
		"expired": forge(t, s.signer, func(c *x509.Certificate) {
			c.DNSNames, c.URIs[0], c.NotAfter = []string{"node1"}, roleURI(roles.Host), time.Now().Add(-time.Second)
		}),
	} {
		l, err := tls.Listen("tcp", "127.0.0.1:0", &tls.Config{Certificates: []tls.Certificate{own}, MinVersion: tls.VersionTLS13})
		if err != nil {
			t.Fatal(err)
		}
		go func() {
			for {
				c, err := l.Accept()
				if err != nil {
					return
				}
				_, _ = io.Copy(c, c)
				c.Close()
			}
		}()
		if _, err := speak(l.Addr().String(), s.client(t, ann)); err == nil {
			t.Errorf("%s is taken for node1", name)
		} else if e := Explain("node1", err); refuse.KindOf(e) != refuse.Cannot {
			t.Errorf("%s: refused without a remedy: %v", name, e)
		}
		l.Close()
	}
	// A host that is revoked: the person's folder says so.
	if _, err := s.signer.Revoke(t.Context(), "node1"); err != nil {
		t.Fatal(err)
	}
	crl, _ := s.signer.Revoked()
	if _, err := Update(ann, crl); err != nil {
		t.Fatal(err)
	}
	if _, err := speak(s.address, s.client(t, ann)); err == nil || !strings.Contains(err.Error(), "is revoked") {
		t.Errorf("a revoked host: %v", err)
	}
}

// TestOpenConnections checks that a connection ends when its certificate is revoked or over, and no other does.
func TestOpenConnections(t *testing.T) {
	s := newSite(t)
	ann, err := speak(s.address, s.client(t, s.user(t, "ann", roles.Admin)))
	if err != nil {
		t.Fatal(err)
	}
	defer ann.Close()
	bob, err := speak(s.address, s.client(t, s.user(t, "bob", roles.Admin)))
	if err != nil {
		t.Fatal(err)
	}
	defer bob.Close()
	config := s.client(t, s.user(t, "eve", roles.Viewer))
	short := forge(t, s.signer, func(c *x509.Certificate) { c.NotAfter = time.Now().Add(testkit.Bound() / 10) })
	config.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &short, nil }
	eve, err := speak(s.address, config)
	if err != nil {
		t.Fatal(err)
	}
	defer eve.Close()

	revoked, err := s.signer.Revoke(t.Context(), "bob")
	if err != nil || len(revoked) != 1 {
		t.Fatalf("revoked %v, %v", revoked, err)
	}
	crl, err := s.signer.Revoked()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Update(s.host, crl); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]net.Conn{"revoked": bob, "over": eve} {
		_ = c.SetDeadline(time.Now().Add(testkit.Bound()))
		_, err := c.Read(make([]byte, 1))
		if err == nil || isTimeout(err) {
			t.Errorf("the connection of a certificate that is %s goes on: %v", name, err)
		}
	}
	if err := echo(ann); err != nil {
		t.Errorf("another's connection ended: %v", err)
	}
}

func isTimeout(err error) bool {
	e, ok := errors.AsType[net.Error](err)
	return ok && e.Timeout()
}

// TestFolder checks that a folder which cannot be read whole lets nobody in, and that a new certificate is used at once.
func TestFolder(t *testing.T) {
	s := newSite(t)
	ann := s.user(t, "ann", roles.Admin)
	list, err := os.ReadFile(filepath.Join(s.host, RevokedFile))
	if err != nil {
		t.Fatal(err)
	}
	foreign, err := newSigner(t).Revoked()
	if err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string][]byte{"none": nil, "empty": {}, "of another site": foreign, "damaged": list[:len(list)-40]} {
		path := filepath.Join(s.host, RevokedFile)
		if err := os.Remove(path); err != nil {
			t.Fatal(err)
		}
		if text != nil {
			if err := os.WriteFile(path, text, 0o644); err != nil {
				t.Fatal(err)
			}
		}
		if c, err := speak(s.address, s.client(t, ann)); err == nil {
			t.Errorf("list %s: let in", name)
			c.Close()
		}
		if err := os.WriteFile(path, list, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Chmod(filepath.Join(ann, UserKey), 0o640); err != nil {
		t.Fatal(err)
	}
	if _, err := Client(ann, "node1"); err == nil || !strings.Contains(err.Error(), "not its owner's alone") {
		t.Errorf("a key that others can read: %v", err)
	}
	next := must(s.signer.Reissue(t.Context(), "node1"))
	install(t, s.host, next)
	c, err := speak(s.address, s.client(t, s.user(t, "bob", roles.Viewer)))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if got := c.(*tls.Conn).ConnectionState().PeerCertificates[0]; !got.Equal(next.Cert) {
		t.Errorf("the server shows %s, not the new certificate %s", Serial(got), Serial(next.Cert))
	}
}

// TestUserDir: a person's certificate lies in the folder of the person's own files; without a home there is none.
func TestUserDir(t *testing.T) {
	t.Setenv("XDG_CONFIG_HOME", "")
	t.Setenv("HOME", "/home/ann")
	if dir, err := UserDir(); err != nil || dir != "/home/ann/.config/berth" {
		t.Errorf("%s, %v", dir, err)
	}
	t.Setenv("HOME", "")
	if dir, err := UserDir(); refuse.KindOf(err) != refuse.Cannot {
		t.Errorf("without a home: %q, %v", dir, err)
	}
}
