package agent

import (
	"bytes"
	"context"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"berth/internal/site/agentconf"
	"berth/internal/site/certs"
	"berth/internal/site/store"
	"berth/internal/sys/refuse"
)

// renewPath is where the agent of the host that signs renews the certificates of others.
const renewPath = "/v1/certificates/renew"

// longestRequest is the most bytes of a request for a certificate.
const longestRequest = 64 << 10

// keepCertificates renews this host's certificate at two thirds of its life, and keeps the list of revoked ones as the host that
// signs has it, until ctx ends.
func (a *Agent) keepCertificates(ctx context.Context) error {
	a.view.Follow(func(c store.Change) {
		if host, ok := strings.CutPrefix(c.Key, store.Members); ok {
			if m, _ := get[Member](a.view, store.Members, host); len(m.Revoked) > 0 {
				a.takeRevoked(m.Revoked)
			}
		}
	})
	var lists [][]byte // of hosts that were told of before
	each(a.view, store.Members, func(_ []string, m Member) {
		if len(m.Revoked) > 0 {
			lists = append(lists, m.Revoked)
		}
	})
	for _, list := range lists {
		a.takeRevoked(list)
	}
	if a.signer != nil {
		go a.tellRevoked(ctx)
	}
	a.renewInTime(ctx, time.Now, certs.Pause)
	return nil
}

// renewInTime is keepCertificates for this host's certificate alone. It looks at the wall clock each time that pause ends, which may be sooner than it
// was to be.
func (a *Agent) renewInTime(ctx context.Context, now func() time.Time, pause func(context.Context, time.Time) bool) {
	var next time.Time // when it is tried, or said, again
	for {
		cert, err := certs.Current(a.conf.Certs)
		at := now().Round(0).Add(renewAgain) // until the host has a certificate
		if err == nil {
			at = certs.RenewAt(cert)
			if now().Before(cert.NotBefore) { // made while the clock was ahead
				at = now()
			}
		}
		unread := err != nil && !errors.Is(err, fs.ErrNotExist)
		if unread || err == nil && !now().Before(at) {
			if left := next.Sub(now()); left <= 0 || left > renewAgain { // more is left where the clock was set back
				next = now().Round(0).Add(renewAgain) // by the wall clock: the other one stands still while the host is suspended
				if unread {
					a.log.Warn("this host's certificate cannot be read", "err", err)
				} else {
					a.renewNow(ctx, cert, now())
				}
			}
			at = next
		}
		if !pause(ctx, at) {
			return
		}
	}
}

// renewAgain is how long after an attempt to renew a certificate that failed the next one follows.
const renewAgain = 10 * time.Minute

// renewNow tries to renew this host's certificate, and says in the log what came of it.
func (a *Agent) renewNow(ctx context.Context, old *x509.Certificate, now time.Time) {
	err := a.renew(ctx)
	switch who := old.Subject.CommonName; {
	case err == nil:
		a.log.Info("renewed this host's certificate")
	case ctx.Err() != nil:
	case now.Before(old.NotBefore):
		a.log.Error("this host's certificate is not valid yet: it was made while a clock was ahead, and nobody reaches the agent", "from", old.NotBefore, "err", err,
			"remedy", fmt.Sprintf("on the host with the site's key: berth certs renew %s; here: berth certs install %s.tar", who, who))
	case now.After(old.NotAfter):
		a.log.Error("this host's certificate is over: the site does not hear of this host, and nobody reaches its agent", "since", old.NotAfter, "err", err,
			"remedy", fmt.Sprintf("on the host with the site's key: berth certs renew %s; here: berth certs install %s.tar", who, who))
	default:
		a.log.Warn("this host's certificate is not renewed; it is tried again", "until", old.NotAfter, "err", err)
	}
}

// renew gets this host a new certificate from the host that signs. Each host itself says that it signs: if one does not sign after
// all, or its answer is no certificate of the site, the next one is asked.
func (a *Agent) renew(ctx context.Context) error {
	if a.signer != nil {
		_, err := certs.RenewOwn(a.conf.Certs, func(request []byte) ([]byte, error) { return a.signOwn(ctx, request) })
		return err
	}
	var signers []string
	each(a.view, store.Members, func(_ []string, m Member) {
		if m.Signs {
			signers = append(signers, m.Address)
		}
	})
	if len(signers) == 0 {
		return refuse.Cannotf("start berthd on the host with the site's key", "no host of this site signs certificates")
	}
	var failed error
	for _, address := range signers {
		_, err := certs.RenewOwn(a.conf.Certs, func(request []byte) ([]byte, error) { return a.askSigner(ctx, address, request) })
		if err == nil {
			return nil
		}
		failed = errors.Join(failed, err)
	}
	return failed
}

// signOwn signs a request of this host, which has the site's key.
func (a *Agent) signOwn(ctx context.Context, request []byte) ([]byte, error) {
	current, err := certs.Current(a.conf.Certs)
	if err != nil {
		return nil, err
	}
	cert, err := a.signer.Renew(ctx, request, current, func() error { return nil })
	if err != nil {
		return nil, err
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: cert.Raw}), nil
}

// askSigner sends a request for a certificate to a host that says that it signs.
func (a *Agent) askSigner(ctx context.Context, address string, request []byte) ([]byte, error) {
	config, err := certs.Client(a.conf.Certs, address)
	if err != nil {
		return nil, err
	}
	client := http.Client{Transport: &http.Transport{TLSClientConfig: config, DialContext: (&net.Dialer{Timeout: 10 * time.Second}).DialContext}, Timeout: 30 * time.Second}
	defer client.CloseIdleConnections()
	ask, err := http.NewRequestWithContext(ctx, http.MethodPost, "https://"+address+renewPath, bytes.NewReader(request))
	if err != nil {
		return nil, err
	}
	answer, err := client.Do(ask)
	if err != nil {
		return nil, certs.Explain(address, err)
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(io.LimitReader(answer.Body, longestRequest))
	if err == nil && answer.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s says: %s", address, bytes.TrimSpace(text))
	}
	return text, err
}

// takeRevoked keeps a list of revoked certificates, if it is newer. Listeners read the file at once.
func (a *Agent) takeRevoked(list []byte) {
	switch did, err := certs.Update(a.conf.Certs, list); {
	case errors.Is(err, fs.ErrNotExist): // a host without certificates
	case err != nil:
		a.log.Warn("the site's list of revoked certificates is not taken", "err", err)
	case did:
		a.log.Info("took the site's list of revoked certificates")
	}
}

// tellRevoked tells the site which certificates are revoked, as often as the authority's list changes.
func (a *Agent) tellRevoked(ctx context.Context) {
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		a.log.Error("follow the list of revoked certificates", "err", err)
		return
	}
	changes := os.NewFile(uintptr(fd), "inotify")
	defer changes.Close()
	if _, err := unix.InotifyAddWatch(fd, agentconf.Signer(a.layout), unix.IN_MOVED_TO|unix.IN_CLOSE_WRITE); err != nil {
		a.log.Error("follow the list of revoked certificates", "err", err)
		return
	}
	stop := context.AfterFunc(ctx, func() { _ = changes.SetReadDeadline(time.Unix(1, 0)) })
	defer stop()
	buf := make([]byte, 4096)
	for ctx.Err() == nil {
		if list, err := os.ReadFile(filepath.Join(agentconf.Signer(a.layout), certs.RevokedFile)); err == nil {
			a.takeRevoked(list)
			if err := a.member(ctx, func(m *Member) bool {
				same := bytes.Equal(m.Revoked, list) && m.Signs
				m.Signs, m.Revoked = true, list
				return !same
			}); err != nil {
				a.log.Warn("the site is not told of revoked certificates yet", "err", err)
				select {
				case <-ctx.Done():
				case <-time.After(retry):
				}
				continue
			}
		}
		_, _ = changes.Read(buf)
	}
}
