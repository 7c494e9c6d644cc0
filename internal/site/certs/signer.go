package certs

import (
	"context"
	"crypto/ecdsa"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math/big"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"time"

	"berth/internal/spec/roles"
	"berth/internal/sys/file"
	"berth/internal/sys/jsonfile"
	"berth/internal/sys/lock"
	"berth/internal/sys/refuse"
)

// The files of the authority, beside CAFile and RevokedFile. Its key never leaves the folder.
const (
	caKey      = "ca.key"
	issuedFile = "issued.json"
	lockFile   = "lock"
)

// Signer is the authority of a site: a folder on one host. Its methods take the folder's lock.
type Signer struct {
	dir  string
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

// Issued is the authority's record of a certificate that it signed.
type Issued struct {
	Serial  string     `json:"serial"`
	Name    string     `json:"name"`
	Role    roles.Role `json:"role"`
	Names   []string   `json:"names,omitempty"` // for a host: other names and addresses by which it is reached
	From    time.Time  `json:"from"`
	Until   time.Time  `json:"until"`
	Revoked time.Time  `json:"revoked,omitzero"`
}

// Live reports whether a certificate is neither over nor revoked.
func (i Issued) Live(now time.Time) bool { return i.Revoked.IsZero() && now.Before(i.Until) }

// Init makes an authority in a folder that is not there yet, or is empty. The folder appears whole.
func Init(dir string) (*Signer, error) {
	key, err := newKey()
	if err != nil {
		return nil, err
	}
	serial, err := newSerial()
	if err != nil {
		return nil, err
	}
	now := time.Now()
	template := &x509.Certificate{
		SerialNumber: serial, Subject: pkix.Name{CommonName: "Berth site " + serial.Text(16)[:8]},
		NotBefore: now.Add(-clocksDiffer), NotAfter: now.Add(authorityLife),
		IsCA: true, BasicConstraintsValid: true, MaxPathLenZero: true, KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageCRLSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return nil, fmt.Errorf("make authority: %w", err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, fmt.Errorf("make authority: %w", err)
	}
	keyText, err := encodeKey(key)
	if err != nil {
		return nil, err
	}
	s := &Signer{dir: dir + file.Unwritten, cert: cert, key: key}
	crl, err := s.sign(big.NewInt(1), nil)
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(filepath.Dir(dir), 0o755); err != nil {
		return nil, fmt.Errorf("make authority: %w", err)
	}
	if err := os.RemoveAll(s.dir); err != nil { // of an init that was killed
		return nil, fmt.Errorf("make authority: %w", err)
	}
	if err := os.Mkdir(s.dir, 0o700); err != nil {
		return nil, fmt.Errorf("make authority: %w", err)
	}
	err = writeAll(s.dir, []File{{caKey, keyText}, {CAFile, encode(certificatePEM, der)}, {RevokedFile, crl}, {issuedFile, []byte("[]\n")}})
	if err == nil {
		err = os.Rename(s.dir, dir)
	}
	if err != nil {
		_ = os.RemoveAll(s.dir)
		if errors.Is(err, fs.ErrExist) {
			return nil, refuse.Busyf("there is an authority in %s: a second one would make all its certificates worthless", dir)
		}
		return nil, fmt.Errorf("make authority: %w", err)
	}
	s.dir = dir
	return s, file.SyncDir(filepath.Dir(dir))
}

// OpenSigner opens the authority in a folder.
func OpenSigner(dir string) (*Signer, error) {
	keyFile := filepath.Join(dir, caKey)
	keyText, err := os.ReadFile(keyFile)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, &refuse.Error{
			Kind: refuse.Cannot, What: "the key of this site's authority is not on this host: there is no " + keyFile,
			Remedy: "run this on the host where berth certs init was run, or begin a site with berth certs init", Err: err,
		}
	}
	if err != nil {
		return nil, fmt.Errorf("read the authority's key: %w", err)
	}
	if err := alone(keyFile); err != nil {
		return nil, err
	}
	keys, err := parseKeys(keyText)
	if err != nil || len(keys) != 1 {
		return nil, refuse.Cannotf("put it back from a copy", "%s is damaged: %d keys, %w", keyFile, len(keys), err)
	}
	text, err := os.ReadFile(filepath.Join(dir, CAFile))
	if err != nil {
		return nil, fmt.Errorf("read the authority's certificate: %w", err)
	}
	cert, err := ParseCertificate(text)
	if err == nil && !keys[0].PublicKey.Equal(cert.PublicKey) {
		err = errors.New("the key is another one's")
	}
	if err != nil {
		return nil, refuse.Cannotf("put it back from a copy", "%s is damaged: %w", filepath.Join(dir, CAFile), err)
	}
	return &Signer{dir: dir, cert: cert, key: keys[0]}, nil
}

// IssueHost makes a key and a certificate for a host. names are the other names and the addresses by which it is reached.
func (s *Signer) IssueHost(ctx context.Context, name string, names []string) (Bundle, error) {
	if !isHostname(name) {
		return Bundle{}, refuse.Invalidf("%.80q is not a host name: lower-case letters, digits, '-', and dots between them, at most 63", name)
	}
	for _, n := range names {
		if _, err := netip.ParseAddr(n); err != nil && !isHostname(n) {
			return Bundle{}, refuse.Invalidf("%.80q is neither a host name nor an address", n)
		}
	}
	return s.issue(ctx, wish{name: name, role: roles.Host, names: names, life: HostLife})
}

// IssueUser makes a key and a certificate for a person or a service.
func (s *Signer) IssueUser(ctx context.Context, name string, role roles.Role, life time.Duration) (Bundle, error) {
	switch {
	case role == roles.Host || !knownRole(role):
		return Bundle{}, refuse.Invalidf("%.80q is not a role of a person: admin, operator or viewer", role)
	case life < time.Minute || life > LongestUser:
		return Bundle{}, refuse.Invalidf("%s is not how long a certificate may last: 1m to %dh", life, int(LongestUser.Hours()))
	}
	return s.issue(ctx, wish{name: name, role: role, life: life})
}

// Reissue makes a new key and a certificate with the name, the role and the addresses of the newest one with this name.
func (s *Signer) Reissue(ctx context.Context, name string) (Bundle, error) {
	all, err := s.List()
	if err != nil {
		return Bundle{}, err
	}
	for _, i := range slices.Backward(all) {
		if i.Name != name {
			continue
		}
		if !i.Revoked.IsZero() {
			return Bundle{}, refuse.Cannotf("berth certs issue makes one all the same", "the certificate of %s was revoked at %s", name, i.Revoked.Local().Format(time.DateTime))
		}
		return s.issue(ctx, wish{name: name, role: i.Role, names: i.Names, life: i.Until.Sub(i.From) - clocksDiffer})
	}
	return Bundle{}, refuse.NotFoundf("no certificate was issued to %.80q: see berth certs ls", name)
}

// wish has the fields of a certificate to be signed.
type wish struct {
	name  string
	role  roles.Role
	names []string
	life  time.Duration
}

func (s *Signer) issue(ctx context.Context, w wish) (Bundle, error) {
	key, err := newKey()
	if err != nil {
		return Bundle{}, err
	}
	keyText, err := encodeKey(key)
	if err != nil {
		return Bundle{}, err
	}
	now := time.Now()
	cert, err := s.certify(ctx, w, &key.PublicKey, now.Add(-clocksDiffer), now.Add(w.life), nil)
	if err != nil {
		return Bundle{}, err
	}
	crl, err := s.Revoked()
	if err != nil {
		return Bundle{}, err
	}
	certFile, keyFile := UserCert, UserKey
	if w.role == roles.Host {
		certFile, keyFile = HostCert, HostKey
	}
	return Bundle{Cert: cert, Files: []File{
		{CAFile, encode(certificatePEM, s.cert.Raw)}, {RevokedFile, crl}, {keyFile, keyText}, {certFile, encode(certificatePEM, cert.Raw)},
	}}, nil
}

// certify signs a certificate and notes it first: one that is noted but was never delivered does no harm. check is asked under the
// lock.
func (s *Signer) certify(ctx context.Context, w wish, key *ecdsa.PublicKey, from, until time.Time, check func([]Issued) error) (*x509.Certificate, error) {
	if err := roles.CheckName(w.name); err != nil {
		return nil, err
	}
	serial, err := newSerial()
	if err != nil {
		return nil, err
	}
	if until.After(s.cert.NotAfter) {
		return nil, refuse.Cannotf("begin a new one: berth certs init in an empty folder, and issue all anew", "this site's authority ends at %s, before such a certificate would", s.cert.NotAfter.Local().Format(time.DateTime))
	}
	template := &x509.Certificate{
		SerialNumber: serial, Subject: pkix.Name{CommonName: w.name}, NotBefore: from, NotAfter: until,
		KeyUsage: x509.KeyUsageDigitalSignature, BasicConstraintsValid: true,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}, URIs: []*url.URL{roleURI(w.role)},
	}
	if w.role == roles.Host {
		template.ExtKeyUsage = append(template.ExtKeyUsage, x509.ExtKeyUsageServerAuth)
		template.DNSNames = []string{w.name}
		for _, n := range w.names {
			if a, err := netip.ParseAddr(n); err == nil {
				template.IPAddresses = append(template.IPAddresses, a.AsSlice())
			} else if n != w.name {
				template.DNSNames = append(template.DNSNames, n)
			}
		}
	}
	der, err := x509.CreateCertificate(rand.Reader, template, s.cert, key, s.key)
	if err != nil {
		return nil, fmt.Errorf("sign certificate: %w", err)
	}
	err = s.change(ctx, func(all []Issued) ([]Issued, error) {
		if check != nil {
			if err := check(all); err != nil {
				return nil, err
			}
		}
		one := Issued{Serial: serial.Text(16), Name: w.name, Role: w.role, Names: w.names, From: from.UTC().Truncate(time.Second), Until: until.UTC().Truncate(time.Second)}
		return append(all, one), nil
	})
	if err != nil {
		return nil, err
	}
	return x509.ParseCertificate(der)
}

// List returns the issued certificates, in the order of their issue. Those that ended more than a month ago are dropped.
func (s *Signer) List() ([]Issued, error) {
	var all []Issued
	f := jsonfile.File{Path: filepath.Join(s.dir, issuedFile), Is: "the certificates that were issued", Remedy: "put it back from a copy: it says what can be revoked"}
	if err := f.Read(&all); err != nil {
		return nil, err
	}
	return all, nil
}

// Revoked returns the list of revoked certificates.
func (s *Signer) Revoked() ([]byte, error) {
	text, err := os.ReadFile(filepath.Join(s.dir, RevokedFile))
	if err != nil {
		return nil, fmt.Errorf("read what is revoked: %w", err)
	}
	return text, nil
}

// Revoke revokes all certificates of a name, or the one with a serial, and returns those that it revoked.
func (s *Signer) Revoke(ctx context.Context, nameOrSerial string) ([]Issued, error) {
	var revoked []Issued
	now := time.Now().UTC().Truncate(time.Second)
	err := s.change(ctx, func(all []Issued) ([]Issued, error) {
		known := false
		for i := range all {
			if all[i].Name != nameOrSerial && all[i].Serial != nameOrSerial {
				continue
			}
			known = true
			if all[i].Live(now) {
				all[i].Revoked = now
				revoked = append(revoked, all[i])
			}
		}
		if !known {
			return nil, refuse.NotFoundf("no certificate was issued to %.80q, and none has this serial: see berth certs ls", nameOrSerial)
		}
		return all, nil
	})
	return revoked, err
}

// change changes the record of issued certificates, and writes the list of revoked ones if that has changed. The record comes first:
// a killed revocation is completed by the next change.
func (s *Signer) change(ctx context.Context, do func([]Issued) ([]Issued, error)) error {
	l, err := lock.Open(ctx, filepath.Join(s.dir, lockFile))
	if err != nil {
		return err
	}
	defer l.Close()
	all, err := s.List()
	if err != nil {
		return err
	}
	all, err = do(all)
	if err != nil {
		return err
	}
	forgotten := time.Now().Add(-30 * 24 * time.Hour)
	all = slices.DeleteFunc(all, func(i Issued) bool { return i.Until.Before(forgotten) })
	text, err := json.MarshalIndent(all, "", "  ")
	if err != nil {
		return fmt.Errorf("note certificates: %w", err)
	}
	if err := writeAll(s.dir, []File{{issuedFile, append(text, '\n')}}); err != nil {
		return err
	}
	return s.publish(all)
}

// publish writes the list of revoked certificates, with the next number, if it lacks one of them.
func (s *Signer) publish(all []Issued) error {
	text, err := s.Revoked()
	if err != nil {
		return err
	}
	old, err := parseList(text, s.cert)
	if err != nil {
		return refuse.Cannotf("put it back from a copy", "%s is damaged: %w", filepath.Join(s.dir, RevokedFile), err)
	}
	var entries []x509.RevocationListEntry
	lacks := false
	for _, i := range all {
		if i.Revoked.IsZero() {
			continue
		}
		serial, ok := new(big.Int).SetString(i.Serial, 16)
		if !ok {
			return refuse.Cannotf("put it back from a copy", "%s holds the serial %q", filepath.Join(s.dir, issuedFile), i.Serial)
		}
		entries = append(entries, x509.RevocationListEntry{SerialNumber: serial, RevocationTime: i.Revoked})
		lacks = lacks || !old.serials[serial.String()]
	}
	if !lacks {
		return nil
	}
	crl, err := s.sign(new(big.Int).Add(old.number, big.NewInt(1)), entries)
	if err != nil {
		return err
	}
	return writeAll(s.dir, []File{{RevokedFile, crl}})
}

// sign makes a list of revoked certificates. Its end is the authority's: hosts go on with the last list that they have.
func (s *Signer) sign(number *big.Int, entries []x509.RevocationListEntry) ([]byte, error) {
	template := &x509.RevocationList{Number: number, ThisUpdate: time.Now().Add(-clocksDiffer), NextUpdate: s.cert.NotAfter, RevokedCertificateEntries: entries}
	der, err := x509.CreateRevocationList(rand.Reader, template, s.cert, s.key)
	if err != nil {
		return nil, fmt.Errorf("sign what is revoked: %w", err)
	}
	return encode(listPEM, der), nil
}
