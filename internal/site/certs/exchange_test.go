package certs

import (
	"bytes"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"berth/internal/sys/refuse"
)

// TestSettle: after a renewal that was killed anywhere, programs that read the first key of a file read the folder's pair.
func TestSettle(t *testing.T) {
	s := newSigner(t)
	dir := t.TempDir()
	old := must(s.IssueHost(t.Context(), "node1", nil))
	next := must(s.Reissue(t.Context(), "node1"))
	third := must(s.Reissue(t.Context(), "node1"))
	install(t, dir, old)
	both := File{HostKey, slices.Concat(old.Files[2].Data, next.Files[2].Data)}
	standard := func() error {
		_, err := tls.LoadX509KeyPair(filepath.Join(dir, HostCert), filepath.Join(dir, HostKey))
		return err
	}
	for name, c := range map[string]struct {
		cert, key File
		cert1     *x509.Certificate
	}{
		"before the certificate": {old.Files[3], old.Files[2], old.Cert},
		"after the certificate":  {next.Files[3], next.Files[2], next.Cert},
	} {
		if err := writeAll(dir, []File{both, c.cert}); err != nil {
			t.Fatal(err)
		}
		if own, err := Own(dir); err != nil || !own.Leaf.Equal(c.cert1) {
			t.Errorf("%s: the folder's own: %v", name, err)
		}
		for range 2 {
			if err := Settle(dir); err != nil {
				t.Fatal(err)
			}
		}
		if got, err := os.ReadFile(filepath.Join(dir, HostKey)); err != nil || !bytes.Equal(got, c.key.Data) {
			t.Errorf("%s: not the certificate's key alone: %v", name, err)
		}
		if err := standard(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		// The next exchange begins with such a folder, too.
		if err := writeAll(dir, []File{both, c.cert}); err != nil {
			t.Fatal(err)
		}
		if err := exchange(dir, third.Files[2], third.Files[3]); err != nil {
			t.Fatal(err)
		}
		if err := standard(); err != nil {
			t.Errorf("%s, and exchanged again: %v", name, err)
		}
	}
	none := t.TempDir()
	if err := Settle(none); err != nil {
		t.Errorf("a folder without certificates: %v", err)
	}
	if left, err := os.ReadDir(none); err != nil || len(left) > 0 {
		t.Errorf("it holds %v, %v", left, err)
	}
}

// TestManyWriters: an agent and commands update a folder at once, and the newest list is what stays.
func TestManyWriters(t *testing.T) {
	s := newSigner(t)
	dir := t.TempDir()
	install(t, dir, must(s.IssueHost(t.Context(), "node1", nil)))
	var lists [][]byte
	for range 8 {
		b := must(s.IssueHost(t.Context(), "gone", nil))
		if _, err := s.Revoke(t.Context(), Serial(b.Cert)); err != nil {
			t.Fatal(err)
		}
		text, err := s.Revoked()
		if err != nil {
			t.Fatal(err)
		}
		lists = append(lists, text)
	}
	first, err := os.ReadFile(filepath.Join(dir, RevokedFile))
	if err != nil {
		t.Fatal(err)
	}
	for range 10 {
		if err := writeAll(dir, []File{{RevokedFile, first}}); err != nil {
			t.Fatal(err)
		}
		var all sync.WaitGroup
		begin := make(chan struct{})
		for _, text := range lists {
			all.Go(func() {
				<-begin
				if _, err := Update(dir, text); err != nil {
					t.Error(err)
				}
			})
		}
		close(begin)
		all.Wait()
		if got, err := os.ReadFile(filepath.Join(dir, RevokedFile)); err != nil || !bytes.Equal(got, lists[len(lists)-1]) {
			t.Fatalf("an older list replaced the newest: %v", err)
		}
	}
	if _, err := Update(t.TempDir(), first); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a folder without certificates: %v", err)
	}
}

// TestRenewalsAreBounded: a host gets no further certificate while several of it last.
func TestRenewalsAreBounded(t *testing.T) {
	s := newSigner(t)
	current := must(s.IssueHost(t.Context(), "node1", nil)).Cert
	key, err := newKey()
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{Subject: pkix.Name{CommonName: "node1"}}, key)
	if err != nil {
		t.Fatal(err)
	}
	request := encode(requestPEM, der)
	lost := ""
	for range mostLive {
		c, err := s.Renew(t.Context(), request, current, func() error { return nil })
		if err != nil {
			t.Fatal(err)
		}
		lost = Serial(c)
	}
	before, err := s.List()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Renew(t.Context(), request, current, func() error { return nil }); refuse.KindOf(err) != refuse.Cannot || !strings.Contains(err.Error(), "5 certificates that last") {
		t.Errorf("one more: %v", err)
	}
	if after, err := s.List(); err != nil || len(after) != len(before) {
		t.Errorf("a refused renewal was noted: %v", err)
	}
	other := must(s.IssueHost(t.Context(), "node2", nil)).Cert
	der, err = x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{Subject: pkix.Name{CommonName: "node2"}}, key)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Renew(t.Context(), encode(requestPEM, der), other, func() error { return nil }); err != nil {
		t.Errorf("another host: %v", err)
	}
	if _, err := s.Revoke(t.Context(), lost); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Renew(t.Context(), request, current, func() error { return nil }); err != nil {
		t.Errorf("after a revocation: %v", err)
	}
}
