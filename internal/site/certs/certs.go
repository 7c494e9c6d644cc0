// Package certs issues and checks the certificates by which the hosts and people of a site know each other: it has a small
// authority ([Signer]), and TLS configurations that read the folder of a host or a person.
package certs

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"berth/internal/spec/roles"
	"berth/internal/sys/refuse"
)

// Where certificates are kept, and the port on which agents listen.
const (
	HostDir   = "/etc/berth/certs" // a host's own
	SignerDir = "/etc/berth/ca"    // the authority, on one host of a site
	Port      = 7611
)

// The files of a folder: a host has the first four, a person UserCert and UserKey in place of the host's two.
const (
	CAFile      = "ca.crt"
	RevokedFile = "revoked.crl"
	HostCert    = "host.crt"
	HostKey     = "host.key"
	UserCert    = "user.crt"
	UserKey     = "user.key"
)

// How long certificates last. Hosts renew theirs at two thirds. Those of people are not renewed, so that a stolen one is soon
// worthless.
const (
	HostLife       = 30 * 24 * time.Hour
	UserLife       = 12 * time.Hour
	LongestUser    = 90 * 24 * time.Hour // for services such as a batch system
	authorityLife  = 10 * 365 * 24 * time.Hour
	clocksDiffer   = 5 * time.Minute // a certificate begins so long before it is made
	rolePrefix     = "berth://role/"
	certificatePEM = "CERTIFICATE"
	keyPEM         = "PRIVATE KEY"
	requestPEM     = "CERTIFICATE REQUEST"
	listPEM        = "X509 CRL"
)

// UserDir returns the folder of a person's certificate.
func UserDir() (string, error) {
	dir, err := os.UserConfigDir()
	if err != nil {
		return "", refuse.Cannotf("set HOME", "there is no folder for your certificate: %w", err)
	}
	return filepath.Join(dir, "berth"), nil
}

// Identity returns the owner of a certificate. It does not check the signature: the TLS configurations of this package
// do.
func Identity(cert *x509.Certificate) (roles.Who, error) {
	if len(cert.URIs) != 1 {
		return roles.Who{}, refuse.Cannotf("berth certs issue makes such certificates", "the certificate of %.80q names no role, or several", cert.Subject.CommonName)
	}
	role, ok := strings.CutPrefix(cert.URIs[0].String(), rolePrefix)
	who := roles.Who{Name: cert.Subject.CommonName, Role: roles.Role(role), Via: roles.ViaTLS}
	if !ok || !knownRole(who.Role) {
		return roles.Who{}, refuse.Cannotf("berth certs issue makes such certificates", "the certificate of %.80q names the role %.80q, which is none", who.Name, cert.URIs[0].String())
	}
	if err := roles.CheckName(who.Name); err != nil {
		return roles.Who{}, err
	}
	return who, nil
}

func knownRole(role roles.Role) bool { return slices.Contains(roles.Roles(), role) }

func roleURI(role roles.Role) *url.URL {
	return &url.URL{Scheme: "berth", Host: "role", Path: "/" + string(role)}
}

// RenewAt returns when a certificate is to be renewed: at two thirds of its life.
func RenewAt(cert *x509.Certificate) time.Time {
	return cert.NotAfter.Add(-cert.NotAfter.Sub(cert.NotBefore) / 3)
}

// encode writes one block of PEM.
func encode(kind string, der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der})
}

// decode reads all blocks of one kind.
func decode(kind string, text []byte) [][]byte {
	var all [][]byte
	for {
		block, rest := pem.Decode(text)
		if block == nil {
			return all
		}
		if block.Type == kind {
			all = append(all, block.Bytes)
		}
		text = rest
	}
}

// ParseCertificate reads a file of one certificate.
func ParseCertificate(text []byte) (*x509.Certificate, error) {
	blocks := decode(certificatePEM, text)
	if len(blocks) != 1 {
		return nil, fmt.Errorf("%d certificates, not one", len(blocks))
	}
	return x509.ParseCertificate(blocks[0])
}

// parseKeys reads a file of keys. There are two while a new certificate is put in the place of an old one: see Install.
func parseKeys(text []byte) ([]*ecdsa.PrivateKey, error) {
	var all []*ecdsa.PrivateKey
	for _, der := range decode(keyPEM, text) {
		key, err := x509.ParsePKCS8PrivateKey(der)
		if err != nil {
			return nil, err
		}
		own, ok := key.(*ecdsa.PrivateKey)
		if !ok {
			return nil, errors.New("not a key of ECDSA")
		}
		all = append(all, own)
	}
	return all, nil
}

func encodeKey(key *ecdsa.PrivateKey) ([]byte, error) {
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, fmt.Errorf("write key: %w", err)
	}
	return encode(keyPEM, der), nil
}

// isP256 reports whether a public key is of the one kind that a site uses.
func isP256(key any) bool {
	k, ok := key.(*ecdsa.PublicKey)
	return ok && k.Curve == elliptic.P256()
}
