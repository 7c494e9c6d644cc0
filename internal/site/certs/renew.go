package certs

import (
	"context"
	"crypto/ecdsa"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"berth/internal/spec/roles"
	"berth/internal/sys/refuse"
)

// subjectAltName is the one extension that a request may have (RFC 5280, 4.2.1.6).
var subjectAltName = asn1.ObjectIdentifier{2, 5, 29, 17}

// mostLive is the most valid certificates of one name with which a renewal makes a further one. A host has two after a renewal; more
// come from answers that were lost. Without a bound one host could fill the authority's record and the list of revoked certificates.
const mostLive = 4

// Renew signs a new key for the owner of a certificate: request is a PEM certificate request, current the certificate of the
// connection. The new certificate has the name, role and addresses of current. Renew refuses a request for others, a current
// certificate that has expired, is revoked or is not of this site, and a further certificate when mostLive of the name are valid.
// begins is called before the signature, when nothing else refuses it; its error refuses too.
func (s *Signer) Renew(ctx context.Context, request []byte, current *x509.Certificate, begins func() error) (*x509.Certificate, error) {
	now := time.Now()
	who, err := Identity(current)
	if err != nil {
		return nil, err
	}
	remedy := "berth certs issue makes a new one, on the host with the site's key"
	if err := current.CheckSignatureFrom(s.cert); err != nil {
		return nil, refuse.Cannotf(remedy, "the certificate of %s is not of this site: %w", who.Name, err)
	}
	if now.After(current.NotAfter) { // one that has not begun was made while a clock was ahead: TLS lets nobody show it but the signing host itself
		return nil, refuse.Cannotf(remedy, "the certificate of %s lasted until %s", who.Name, current.NotAfter.Local().Format(time.DateTime))
	}
	csr, err := parseRequest(request)
	if err != nil {
		return nil, refuse.Invalidf("this is no request for a certificate: %w", err)
	}
	if err := sameWish(csr, current); err != nil {
		return nil, err
	}
	key, err := x509.ParsePKIXPublicKey(csr.RawSubjectPublicKeyInfo)
	if err != nil || !isP256(key) {
		return nil, refuse.Invalidf("a request for a certificate needs a key of ECDSA P-256")
	}
	w := wish{name: who.Name, role: who.Role}
	for _, name := range current.DNSNames {
		if name != who.Name {
			w.names = append(w.names, name)
		}
	}
	for _, a := range current.IPAddresses {
		w.names = append(w.names, a.String())
	}
	life := current.NotAfter.Sub(current.NotBefore) - clocksDiffer
	return s.certify(ctx, w, key.(*ecdsa.PublicKey), now.Add(-clocksDiffer), now.Add(life), func(all []Issued) error {
		if slices.ContainsFunc(all, func(i Issued) bool { return i.Serial == Serial(current) && !i.Revoked.IsZero() }) {
			return refuse.Cannotf("an admin issues a new one: berth certs issue", "the certificate of %s (%s) is revoked", who.Name, Serial(current))
		}
		live := 0
		for _, i := range all {
			if i.Name == who.Name && i.Live(now) {
				live++
			}
		}
		if live > mostLive {
			return refuse.Cannotf("berth certs ls shows them, berth certs revoke SERIAL ends those that nobody uses; or wait until they are over",
				"%s has %d certificates that last: no more are made by renewal", who.Name, live)
		}
		return begins()
	})
}

func parseRequest(text []byte) (*x509.CertificateRequest, error) {
	blocks := decode(requestPEM, text)
	if len(blocks) != 1 {
		return nil, fmt.Errorf("%d requests, not one", len(blocks))
	}
	csr, err := x509.ParseCertificateRequest(blocks[0])
	if err != nil {
		return nil, err
	}
	return csr, csr.CheckSignature()
}

// sameWish refuses a request for another name, role or address than a certificate has.
func sameWish(csr *x509.CertificateRequest, current *x509.Certificate) error {
	remedy := "renewal keeps name, role and addresses; an admin changes them: berth certs issue"
	if !slices.Equal(csr.RawSubject, current.RawSubject) {
		return refuse.Cannotf(remedy, "the certificate of %s cannot be renewed with the name %.80q", current.Subject.CommonName, csr.Subject.CommonName)
	}
	for _, e := range csr.Extensions {
		if !e.Id.Equal(subjectAltName) {
			return refuse.Cannotf(remedy, "a request for a certificate asks for the extension %s", e.Id)
		}
	}
	for _, u := range csr.URIs {
		if u.String() != current.URIs[0].String() {
			return refuse.Cannotf(remedy, "the certificate of %s cannot be renewed with the role %.80q", current.Subject.CommonName, u.String())
		}
	}
	for _, name := range csr.DNSNames {
		if !slices.Contains(current.DNSNames, name) {
			return refuse.Cannotf(remedy, "the certificate of %s cannot be renewed for %.80q", current.Subject.CommonName, name)
		}
	}
	for _, a := range csr.IPAddresses {
		if !slices.ContainsFunc(current.IPAddresses, a.Equal) {
			return refuse.Cannotf(remedy, "the certificate of %s cannot be renewed for %s", current.Subject.CommonName, a)
		}
	}
	if len(csr.EmailAddresses) > 0 {
		return refuse.Cannotf(remedy, "a request for a certificate asks for an electronic mail address")
	}
	return nil
}

// Current returns the certificate of a host's folder.
func Current(dir string) (*x509.Certificate, error) {
	text, err := os.ReadFile(filepath.Join(dir, HostCert))
	if err != nil {
		return nil, fmt.Errorf("read certificate: %w", err)
	}
	return ParseCertificate(text)
}

// RenewOwn gets a host a new certificate with a new key: ask sends a request to the authority's agent, which answers with the
// certificate (both PEM). The certificate is checked before it replaces the old one.
func RenewOwn(dir string, ask func(request []byte) (certificate []byte, err error)) (*x509.Certificate, error) {
	old, err := Current(dir)
	if err != nil {
		return nil, err
	}
	who, err := Identity(old)
	if err != nil {
		return nil, err
	}
	if who.Role != roles.Host {
		return nil, refuse.Cannotf("berth certs issue", "%s is the certificate of %s: only hosts renew theirs", filepath.Join(dir, HostCert), who)
	}
	key, err := newKey()
	if err != nil {
		return nil, err
	}
	template := &x509.CertificateRequest{Subject: pkix.Name{CommonName: who.Name}}
	der, err := x509.CreateCertificateRequest(rand.Reader, template, key)
	if err != nil {
		return nil, fmt.Errorf("ask for a certificate: %w", err)
	}
	answer, err := ask(encode(requestPEM, der))
	if err != nil {
		return nil, err
	}
	cert, err := ParseCertificate(answer)
	if err != nil {
		return nil, fmt.Errorf("read the new certificate: %w", err)
	}
	text, err := os.ReadFile(filepath.Join(dir, CAFile))
	if err != nil {
		return nil, fmt.Errorf("read the authority's certificate: %w", err)
	}
	ca, err := ParseCertificate(text)
	if err != nil {
		return nil, fmt.Errorf("read the authority's certificate: %w", err)
	}
	if now, err := Identity(cert); err != nil || now != who || !key.PublicKey.Equal(cert.PublicKey) || cert.CheckSignatureFrom(ca) != nil {
		return nil, refuse.Cannotf("look who answers in place of the authority's host", "the new certificate is not what %s asked for", who.Name)
	}
	keyText, err := encodeKey(key)
	if err != nil {
		return nil, err
	}
	held, err := hold(dir)
	if err != nil {
		return nil, err
	}
	defer held.Close()
	if now, err := Current(dir); err != nil || !now.Equal(old) {
		return nil, refuse.Busyf("the certificate of %s was replaced meanwhile: the new one stays", who.Name)
	}
	return cert, exchange(dir, File{HostKey, keyText}, File{HostCert, encode(certificatePEM, cert.Raw)})
}
