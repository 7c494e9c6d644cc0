package agent

import (
	"bytes"
	"encoding/pem"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"berth/internal/site/agentconf"
	"berth/internal/site/certs"
	"berth/internal/site/store"
	"berth/internal/spec/roles"
	"berth/test/env"
	"berth/test/testkit"
)

// TestHostThatSigns: the host that signs tells the others which certificates are revoked, and renews theirs.
func TestHostThatSigns(t *testing.T) {
	memory := store.NewMemory()
	a, b := newBed(t, memory), newBed(t, memory)
	b.conf.Host, b.conf.Address = "b", "b:7611"
	signer, err := certs.Init(agentconf.Signer(a.layout))
	testkit.Must(t, err)
	a.signer, a.conf.Certs, b.conf.Certs = signer, filepath.Join(t.TempDir(), "certs"), filepath.Join(t.TempDir(), "certs")
	env.Certify(t, signer, a.conf.Certs, "a", roles.Host, "127.0.0.1")
	env.Certify(t, signer, b.conf.Certs, "b", roles.Host)
	plain, err := net.Listen("tcp", "127.0.0.1:0")
	testkit.Must(t, err)
	l, err := certs.Listen(t.Context(), plain, a.conf.Certs)
	testkit.Must(t, err)
	answers := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		request, err := io.ReadAll(r.Body)
		if err != nil || r.Method != http.MethodPost || r.URL.Path != renewPath {
			http.Error(w, "no such thing", http.StatusNotFound)
			return
		}
		cert, err := signer.Renew(r.Context(), request, r.TLS.PeerCertificates[0], func() error { return nil })
		if err != nil {
			http.Error(w, err.Error(), http.StatusForbidden)
			return
		}
		_ = pem.Encode(w, &pem.Block{Type: "CERTIFICATE", Bytes: cert.Raw})
	})}
	a.conf.Address = l.Addr().String()
	var all sync.WaitGroup
	t.Cleanup(all.Wait)
	all.Go(func() { _ = answers.Serve(l) })
	t.Cleanup(func() { _ = answers.Close() })
	for _, host := range []*bed{a, b} {
		host.run()
		all.Go(func() { _ = host.keepCertificates(t.Context()) }) // until the test ends
	}

	// Somebody's certificate is revoked: b has the list.
	_, err = signer.IssueUser(t.Context(), "eve", roles.Viewer, certs.UserLife)
	testkit.Must(t, err)
	_, err = signer.Revoke(t.Context(), "eve")
	testkit.Must(t, err)
	list, err := signer.Revoked()
	testkit.Must(t, err)
	testkit.Eventually(t, "the other host has the list", func() bool {
		has, err := os.ReadFile(filepath.Join(b.conf.Certs, certs.RevokedFile))
		return err == nil && bytes.Equal(has, list)
	})

	// b asks a for a certificate, and does not get one when its own is revoked.
	was, err := certs.Current(b.conf.Certs)
	testkit.Must(t, err)
	testkit.Must(t, b.renew(t.Context()))
	if is, err := certs.Current(b.conf.Certs); err != nil || is.Equal(was) || is.Subject.CommonName != "b" {
		t.Errorf("renewed: %v, %v", is, err)
	}
	_, err = signer.Revoke(t.Context(), "b")
	testkit.Must(t, err)
	if err := b.renew(t.Context()); err == nil {
		t.Error("a revoked certificate is renewed")
	}
}
