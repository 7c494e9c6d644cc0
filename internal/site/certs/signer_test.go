package certs

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"crypto/x509/pkix"
	"io/fs"
	"math/big"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"berth/internal/spec/roles"
	"berth/internal/sys/refuse"
)

// TestTheKeyStays looks for the authority's key in all that leaves its folder, and at the modes in it.
func TestTheKeyStays(t *testing.T) {
	s := newSigner(t)
	key, err := os.ReadFile(filepath.Join(s.dir, caKey))
	if err != nil {
		t.Fatal(err)
	}
	secret, err := s.key.Bytes()
	if err != nil {
		t.Fatal(err)
	}
	for _, b := range []Bundle{must(s.IssueHost(t.Context(), "node1", nil)), must(s.IssueUser(t.Context(), "ann", roles.Admin, UserLife))} {
		var out bytes.Buffer
		if err := b.Tar(&out); err != nil {
			t.Fatal(err)
		}
		if bytes.Contains(out.Bytes(), key) || bytes.Contains(out.Bytes(), secret) {
			t.Error("a bundle holds the authority's key")
		}
		again, err := Unpack(&out)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(b.Files, again.Files); diff != "" {
			t.Errorf("a bundle is not what was packed:\n%s", diff)
		}
	}
	modes := map[string]fs.FileMode{}
	err = filepath.WalkDir(s.dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		modes[strings.TrimPrefix(path, s.dir)] = info.Mode().Perm()
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]fs.FileMode{"": 0o700, "/ca.key": 0o600, "/ca.crt": 0o644, "/issued.json": 0o600, "/revoked.crl": 0o644, "/lock": 0o600}
	if diff := cmp.Diff(want, modes); diff != "" {
		t.Error(diff)
	}
	if _, err := Init(s.dir); refuse.KindOf(err) != refuse.Busy {
		t.Errorf("a second authority: %v", err)
	}
	if err := os.Chmod(filepath.Join(s.dir, caKey), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := OpenSigner(s.dir); refuse.KindOf(err) != refuse.Cannot {
		t.Errorf("an authority whose key all can read: %v", err)
	}
	if _, err := OpenSigner(t.TempDir()); refuse.KindOf(err) != refuse.Cannot || !strings.Contains(err.Error(), "berth certs init") {
		t.Errorf("no authority: %v", err)
	}
}

// TestInitIsKilled leaves what a killed init leaves: the next one begins anew.
func TestInitIsKilled(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "ca")
	if err := os.MkdirAll(dir+".tmp", 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir+".tmp", caKey), []byte("half"), 0o600); err != nil {
		t.Fatal(err)
	}
	s, err := Init(dir)
	if err != nil {
		t.Fatal(err)
	}
	again, err := OpenSigner(dir)
	if err != nil || !again.cert.Equal(s.cert) {
		t.Fatalf("open: %v", err)
	}
}

func TestIssueRefuses(t *testing.T) {
	s := newSigner(t)
	for _, name := range []string{"", "../node1", "Node1", "node_1", "node1.", "-node", "no de", "node1\n", "192.0.2.1", strings.Repeat("a", 64)} {
		if _, err := s.IssueHost(t.Context(), name, nil); refuse.KindOf(err) != refuse.Invalid {
			t.Errorf("host %q: %v", name, err)
		}
		if name == "192.0.2.1" {
			continue // an address is one of a host's names, not its name
		}
		if _, err := s.IssueHost(t.Context(), "node1", []string{name}); refuse.KindOf(err) != refuse.Invalid {
			t.Errorf("host with the name %q: %v", name, err)
		}
	}
	for name, c := range map[string]struct {
		name string
		role roles.Role
		life time.Duration
	}{
		"a host's role": {"ann", roles.Host, UserLife}, "no role": {"ann", "", UserLife}, "an unknown role": {"ann", "root", UserLife},
		"too long": {"ann", roles.Viewer, LongestUser + 1}, "no time": {"ann", roles.Viewer, 0}, "below 0": {"ann", roles.Viewer, -time.Hour},
		"name with a slash": {"a/b", roles.Viewer, UserLife}, "name with a space": {"a b", roles.Viewer, UserLife},
	} {
		if _, err := s.IssueUser(t.Context(), c.name, c.role, c.life); refuse.KindOf(err) != refuse.Invalid {
			t.Errorf("%s: %v", name, err)
		}
	}
	all, err := s.List()
	if err != nil || len(all) != 0 {
		t.Errorf("issued %v, %v", all, err)
	}
}

func TestInstallRefuses(t *testing.T) {
	s := newSigner(t)
	dir := t.TempDir()
	install(t, dir, must(s.IssueHost(t.Context(), "node1", nil)))
	if err := Install(dir, must(newSigner(t).IssueHost(t.Context(), "node1", nil))); refuse.KindOf(err) != refuse.Busy {
		t.Errorf("the certificate of another site: %v", err)
	}
	b := must(s.IssueHost(t.Context(), "node2", nil))
	other := must(s.IssueHost(t.Context(), "node3", nil))
	foreign := must(newSigner(t).IssueHost(t.Context(), "node3", nil))
	for name, files := range map[string][]File{
		"another's key":       {b.Files[0], b.Files[1], other.Files[2], b.Files[3]},
		"a foreign authority": {foreign.Files[0], b.Files[1], b.Files[2], b.Files[3]},
		"a foreign list":      {b.Files[0], foreign.Files[1], b.Files[2], b.Files[3]},
		"no list":             {b.Files[0], b.Files[2], b.Files[3]},
		"a path":              {b.Files[0], b.Files[1], b.Files[2], b.Files[3], {"../../root/.ssh/authorized_keys", []byte("x")}},
	} {
		var out bytes.Buffer
		if err := (Bundle{Cert: b.Cert, Files: files}).Tar(&out); err != nil {
			t.Fatal(err)
		}
		if _, err := Unpack(&out); refuse.KindOf(err) != refuse.Invalid {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestExchangeIsKilled checks each state of the folder that an exchange passes: certificate and key belong together.
func TestExchangeIsKilled(t *testing.T) {
	s := newSigner(t)
	dir := t.TempDir()
	old := must(s.IssueHost(t.Context(), "node1", nil))
	next := must(s.Reissue(t.Context(), "node1"))
	install(t, dir, old)
	both := append(bytes.Clone(next.Files[2].Data), old.Files[2].Data...)
	for _, state := range []struct {
		write File
		want  *x509.Certificate
	}{{File{HostKey, both}, old.Cert}, {next.Files[3], next.Cert}, {next.Files[2], next.Cert}} {
		if err := writeAll(dir, []File{state.write}); err != nil {
			t.Fatal(err)
		}
		now, err := open(dir).load()
		if err != nil || !now.own.Leaf.Equal(state.want) {
			t.Errorf("after %s: %v", state.write.Name, err)
		}
	}
}

func TestRenew(t *testing.T) {
	s := newSigner(t)
	dir := t.TempDir()
	install(t, dir, must(s.IssueHost(t.Context(), "node1", []string{"192.0.2.1", "node1.example.org", "2001:db8::1"})))
	old, err := Current(dir)
	if err != nil {
		t.Fatal(err)
	}
	if third := time.Until(RenewAt(old)); third < 19*24*time.Hour || third > 21*24*time.Hour {
		t.Errorf("renewed in %s, not in 20 days", third)
	}
	next, err := RenewOwn(dir, func(request []byte) ([]byte, error) {
		c, err := s.Renew(t.Context(), request, old, func() error { return nil })
		if err != nil {
			return nil, err
		}
		return encode(certificatePEM, c.Raw), nil
	})
	if err != nil {
		t.Fatal(err)
	}
	who, err := Identity(next)
	if err != nil || who != (roles.Who{Name: "node1", Role: roles.Host, Via: roles.ViaTLS}) {
		t.Errorf("renewed as %+v, %v", who, err)
	}
	if diff := cmp.Diff(append(old.DNSNames, addresses(old)...), append(next.DNSNames, addresses(next)...)); diff != "" {
		t.Errorf("other names:\n%s", diff)
	}
	if old.PublicKey.(*ecdsa.PublicKey).Equal(next.PublicKey) || Serial(old) == Serial(next) {
		t.Error("the key or the serial is the old one")
	}
	if now, err := open(dir).load(); err != nil || !now.own.Leaf.Equal(next) {
		t.Errorf("the folder does not hold the new one: %v", err)
	}
	if diff := next.NotAfter.Sub(next.NotBefore) - old.NotAfter.Sub(old.NotBefore); diff.Abs() > time.Second {
		t.Errorf("it lasts %s longer than the old one", diff)
	}
}

func addresses(c *x509.Certificate) []string {
	var all []string
	for _, a := range c.IPAddresses {
		all = append(all, a.String())
	}
	return all
}

func TestRenewRefuses(t *testing.T) {
	s := newSigner(t)
	host := must(s.IssueHost(t.Context(), "node1", []string{"192.0.2.1"})).Cert
	gone := must(s.IssueHost(t.Context(), "gone", nil)).Cert
	if _, err := s.Revoke(t.Context(), "gone"); err != nil {
		t.Fatal(err)
	}
	foreign := must(newSigner(t).IssueHost(t.Context(), "node1", nil)).Cert
	forged := func(change func(*x509.Certificate)) *x509.Certificate {
		c, err := x509.ParseCertificate(forge(t, s, change).Certificate[0])
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	p256, _ := newKey()
	p384, _ := ecdsa.GenerateKey(elliptic.P384(), rand.Reader)
	rsaKey, _ := rsa.GenerateKey(rand.Reader, 2048)
	request := func(key any, change func(*x509.CertificateRequest)) []byte {
		r := &x509.CertificateRequest{Subject: pkix.Name{CommonName: "node1"}}
		if change != nil {
			change(r)
		}
		der, err := x509.CreateCertificateRequest(rand.Reader, r, key)
		if err != nil {
			t.Fatal(err)
		}
		return encode(requestPEM, der)
	}
	good := request(p256, nil)
	named := func(name string) []byte {
		return request(p256, func(r *x509.CertificateRequest) { r.Subject.CommonName = name })
	}
	changed := bytes.Replace(good, good[60:64], []byte("AAAA"), 1)
	before, err := s.List()
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		request []byte
		current *x509.Certificate
	}{
		"another name":        {named("node2"), host},
		"more of a name":      {request(p256, func(r *x509.CertificateRequest) { r.Subject.Organization = []string{"x"} }), host},
		"no name":             {named(""), host},
		"another role":        {request(p256, func(r *x509.CertificateRequest) { r.URIs = []*url.URL{roleURI(roles.Admin)} }), host},
		"another host's name": {request(p256, func(r *x509.CertificateRequest) { r.DNSNames = []string{"node2"} }), host},
		"another address":     {request(p256, func(r *x509.CertificateRequest) { r.IPAddresses = []net.IP{net.IPv4(192, 0, 2, 2)} }), host},
		"mail":                {request(p256, func(r *x509.CertificateRequest) { r.EmailAddresses = []string{"a@b.example"} }), host},
		"an authority": {request(p256, func(r *x509.CertificateRequest) {
			r.ExtraExtensions = []pkix.Extension{{Id: []int{2, 5, 29, 19}, Value: []byte{0x30, 3, 1, 1, 0xff}}}
		}), host},
		"a longer key":        {request(p384, nil), host},
		"an RSA key":          {request(rsaKey, nil), host},
		"a damaged signature": {changed, host},
		"nothing":             {nil, host},
		"two requests":        {append(bytes.Clone(good), good...), host},
		"a revoked one":       {named("gone"), gone},
		"one of another site": {good, foreign},
		"an expired one": {good, forged(func(c *x509.Certificate) {
			c.Subject.CommonName, c.URIs[0], c.NotAfter = "node1", roleURI(roles.Host), time.Now().Add(-time.Second)
		})},
		"one without a role":   {good, forged(func(c *x509.Certificate) { c.Subject.CommonName, c.URIs = "node1", nil })},
		"the authority itself": {good, s.cert},
	} {
		if got, err := s.Renew(t.Context(), c.request, c.current, func() error { return nil }); err == nil {
			t.Errorf("%s: renewed as %s", name, got.Subject)
		} else if k := refuse.KindOf(err); k != refuse.Cannot && k != refuse.Invalid {
			t.Errorf("%s: not refused but failed: %v", name, err)
		}
	}
	if after, err := s.List(); err != nil || len(after) != len(before) {
		t.Errorf("a refused renewal was noted: %v, %v", after, err)
	}
	if _, err := s.Renew(t.Context(), good, host, func() error { return nil }); err != nil {
		t.Errorf("one without a fault is refused: %v", err)
	}
	if _, err := s.Reissue(t.Context(), "gone"); refuse.KindOf(err) != refuse.Cannot {
		t.Errorf("a revoked name is issued anew by renewal: %v", err)
	}
	// A revoked host's certificate from before its renewal is revoked with it.
	revoked, err := s.Revoke(t.Context(), "node1")
	if err != nil || len(revoked) != 2 {
		t.Errorf("revoked %d certificates of node1, not 2: %v", len(revoked), err)
	}
}

func TestListNumberGrows(t *testing.T) {
	s := &site{signer: newSigner(t), host: t.TempDir()}
	install(t, s.host, must(s.signer.IssueHost(t.Context(), "node1", nil)))
	first, err := s.signer.Revoked()
	if err != nil {
		t.Fatal(err)
	}
	s.user(t, "ann", roles.Viewer)
	s.user(t, "bob", roles.Viewer)
	for i, name := range []string{"ann", "bob"} {
		if _, err := s.signer.Revoke(t.Context(), name); err != nil {
			t.Fatal(err)
		}
		text, err := s.signer.Revoked()
		if err != nil {
			t.Fatal(err)
		}
		l, err := parseList(text, s.signer.cert)
		if err != nil || l.number.Cmp(big.NewInt(int64(i+2))) != 0 || len(l.serials) != i+1 {
			t.Errorf("list %+v, %v", l, err)
		}
		if changed, err := Update(s.host, text); err != nil || !changed {
			t.Errorf("update: %v, %v", changed, err)
		}
	}
	last, _ := s.signer.Revoked()
	for name, text := range map[string][]byte{"an older list": first, "the same list": last} {
		if changed, err := Update(s.host, text); err != nil || changed {
			t.Errorf("%s: %v, %v", name, changed, err)
		}
	}
	now, err := os.ReadFile(filepath.Join(s.host, RevokedFile))
	if err != nil || !bytes.Equal(now, last) {
		t.Errorf("the last list was replaced: %v", err)
	}
	foreign, _ := newSigner(t).Revoked()
	if _, err := Update(s.host, foreign); refuse.KindOf(err) != refuse.Invalid {
		t.Errorf("a foreign list: %v", err)
	}
	if _, err := s.signer.Revoke(context.Background(), "nobody"); refuse.KindOf(err) != refuse.NotFound {
		t.Errorf("revoke nobody: %v", err)
	}
}
