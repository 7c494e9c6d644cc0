package certs

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"time"

	"berth/internal/spec/roles"
	"berth/internal/sys/refuse"
)

// Server returns the configuration of a host's agent: TLS 1.3 alone, and every client needs a certificate of the site. The folder is
// looked at in each handshake: a renewed certificate and a longer list of revoked ones hold from then on. Listen checks open
// connections, too.
func Server(dir string) (*tls.Config, error) {
	f := open(dir)
	s, err := f.load()
	if err != nil {
		return nil, err
	}
	if who, err := Identity(s.own.Leaf); err != nil || who.Role != roles.Host {
		return nil, refuse.Cannotf("berth certs issue HOST, on the host with the site's key", "the certificate in %s is not one of a host", dir)
	}
	c := base()
	c.GetConfigForClient = func(hello *tls.ClientHelloInfo) (*tls.Config, error) {
		s, err := f.load()
		if err != nil {
			return nil, err
		}
		c := base()
		c.Certificates = []tls.Certificate{s.own}
		c.ClientAuth = tls.RequireAndVerifyClientCert
		c.ClientCAs = s.pool
		c.VerifyConnection = func(cs tls.ConnectionState) error {
			leaf := cs.PeerCertificates[0]
			if err := s.accept(leaf); err != nil {
				return err
			}
			if t, ok := hello.Conn.(*tracked); ok {
				return t.known(leaf)
			}
			return nil
		}
		return c, nil
	}
	return c, nil
}

// base is the configuration that both sides share. Tickets would let a session go on past the checks of a handshake. A websocket
// begins as a request of HTTP/1.1, so both sides speak that.
func base() *tls.Config {
	return &tls.Config{MinVersion: tls.VersionTLS13, SessionTicketsDisabled: true, NextProtos: []string{"http/1.1"}}
}

// accept refuses a certificate of the site that is revoked or names no owner. Its signature and its time have been
// checked.
func (s *state) accept(leaf *x509.Certificate) error {
	if err := s.revoked.check(leaf); err != nil {
		return err
	}
	_, err := Identity(leaf)
	return err
}

// Client returns the configuration for a connection to the agent of a host, NAME or NAME:PORT. dir is the folder of a person, or of
// the host that asks. The other side must prove to be a host of the site with this name or address.
func Client(dir, host string) (*tls.Config, error) {
	f := open(dir)
	s, err := f.load()
	if err != nil {
		return nil, err
	}
	if now := time.Now(); now.After(s.own.Leaf.NotAfter) {
		return nil, refuse.Cannotf("on the host with the site's key: berth certs issue", "the certificate of %q in %s ended at %s",
			s.own.Leaf.Subject.CommonName, dir, s.own.Leaf.NotAfter.Local().Format(time.DateTime))
	}
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	c := base()
	c.ServerName = host
	c.RootCAs = s.pool
	c.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
		s, err := f.load()
		if err != nil {
			return nil, err
		}
		return &s.own, nil
	}
	c.VerifyConnection = func(cs tls.ConnectionState) error {
		s, err := f.load()
		if err != nil {
			return err
		}
		leaf := cs.PeerCertificates[0]
		if err := s.accept(leaf); err != nil {
			return err
		}
		if who, err := Identity(leaf); err != nil || who.Role != roles.Host {
			return refuse.Cannotf("look who listens at that address", "%s answers with the certificate of %s, which is no host", host, who)
		}
		return nil
	}
	return c, nil
}

// Explain turns a TLS error of a connection to a host into a sentence with a remedy. It returns other errors as they are.
func Explain(host string, err error) error {
	again := "on the host with the site's key: berth certs issue, or berth certs ls to see what was issued and revoked"
	explained := func(format string, a ...any) error {
		return &refuse.Error{Kind: refuse.Cannot, What: fmt.Sprintf(format, a...), Remedy: again, Err: err}
	}
	if r, ok := errors.AsType[*refuse.Error](err); ok {
		return r // the error with which this side refused
	}
	if alert, ok := errors.AsType[*net.OpError](err); ok && alert.Op == "remote error" { // an alert of TLS
		return explained("%s does not take this certificate (%s): it may be revoked, too old, or of another site", host, alert.Err)
	}
	if _, ok := errors.AsType[x509.UnknownAuthorityError](err); ok {
		return explained("what answers as %s is not of this site: another authority signed its certificate", host)
	}
	if name, ok := errors.AsType[x509.HostnameError](err); ok {
		return explained("what answers as %s has a certificate of %q, for other names", host, name.Certificate.Subject.CommonName)
	}
	if invalid, ok := errors.AsType[x509.CertificateInvalidError](err); ok && invalid.Reason == x509.Expired {
		return explained("the certificate of %s has ended, or a clock is wrong: it lasts from %s to %s", host,
			invalid.Cert.NotBefore.Local().Format(time.DateTime), invalid.Cert.NotAfter.Local().Format(time.DateTime))
	}
	return err
}
