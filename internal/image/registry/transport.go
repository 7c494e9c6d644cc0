package registry

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/google/go-containerregistry/pkg/v1/remote/transport"

	"berth/internal/image/pull"
	"berth/internal/sys/refuse"
)

// signIn connects to the registry.
func (p *puller) signIn(ctx context.Context) error {
	repo := p.ref.Context()
	config, err := tlsFor(p.Certs, repo.RegistryStr(), p.Insecure)
	if err != nil {
		return err
	}
	login, err := login(p.Env, repo)
	if err != nil {
		return err
	}
	base := http.DefaultTransport.(*http.Transport).Clone()
	base.TLSClientConfig, base.ResponseHeaderTimeout = config, p.Quiet
	base.DisableCompression = true // a blob must stay as it is: its digest is over its bytes
	g := &guard{inner: base, plain: p.Insecure, say: func(text string) { _ = p.tell.say(pull.Answer{Say: text}) }}
	t, err := transport.NewWithContext(ctx, repo.Registry, login, g, []string{repo.Scope(transport.PullScope)})
	if err != nil {
		return err
	}
	p.http = t.(*transport.Wrapper) // of NewWithContext, always
	return nil
}

// tlsFor returns the TLS settings for a registry: the system's authorities and the registry's own, and the client
// certificate of a pair *.cert, *.key.
func tlsFor(dirs []string, host string, insecure bool) (*tls.Config, error) {
	c := &tls.Config{InsecureSkipVerify: insecure} // true only where the user asked for it
	for _, dir := range dirs {
		dir = filepath.Join(dir, host)
		files, err := os.ReadDir(dir)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("read the certificates for %s: %w", host, err)
		}
		for _, f := range files {
			path := filepath.Join(dir, f.Name())
			switch filepath.Ext(path) {
			case ".crt":
				text, err := os.ReadFile(path)
				if err != nil {
					return nil, fmt.Errorf("read the certificates for %s: %w", host, err)
				}
				if c.RootCAs == nil {
					if c.RootCAs, err = x509.SystemCertPool(); err != nil {
						return nil, fmt.Errorf("read the system's certificates: %w", err)
					}
				}
				if !c.RootCAs.AppendCertsFromPEM(text) {
					return nil, refuse.Cannotf("", "%s holds no certificate in PEM form", path)
				}
			case ".cert":
				pair, err := tls.LoadX509KeyPair(path, strings.TrimSuffix(path, ".cert")+".key")
				if err != nil {
					return nil, fmt.Errorf("read the client's certificate for %s: %w", host, err)
				}
				c.Certificates = append(c.Certificates, pair)
			}
		}
	}
	return c, nil
}

// guard is the transport below the signing in. It sends nothing in the clear to another machine unless the user asked
// for that, keeps answers short, and asks again where the registry says when.
type guard struct {
	inner http.RoundTripper
	plain bool // http to other machines is allowed
	say   func(string)
}

// mostAnswer is the most bytes of an answer that is no blob, mostTries how often a request is sent, and mostWait how long a
// registry may let one wait.
const (
	mostAnswer = 8 << 20
	mostTries  = 5
	mostWait   = 2 * time.Minute
)

// blobKey marks the context of a request for a blob, whose answer may be long.
type blobKey struct{}

func blobRequest(ctx context.Context) context.Context { return context.WithValue(ctx, blobKey{}, true) }

// RoundTrip sends a request.
func (g *guard) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.URL.Scheme != "https" && !g.plain && !loopback(r.URL) {
		return nil, &refuse.Error{
			Kind: refuse.Failed, What: fmt.Sprintf("%s would be asked without TLS, where everybody on the way reads and changes what is sent", clean(r.URL.Host)),
			Remedy: "give it a certificate, or allow it with --tls-verify=false",
		}
	}
	for try := 1; ; try++ {
		resp, err := g.inner.RoundTrip(r)
		if err != nil {
			return nil, err
		}
		wait, again := retryAfter(resp, time.Now())
		if !again || wait > mostWait || try == mostTries || r.Body != nil && r.Body != http.NoBody {
			if r.Context().Value(blobKey{}) == nil {
				resp.Body = &short{ReadCloser: resp.Body, left: mostAnswer}
			}
			return resp, nil
		}
		resp.Body.Close()
		g.say(fmt.Sprintf("%s answers %s and asks to wait %s", clean(r.URL.Host), resp.Status, wait.Round(time.Second)))
		select {
		case <-r.Context().Done():
			return nil, context.Cause(r.Context())
		case <-time.After(wait):
		}
	}
}

// retryAfter reports whether a registry asks to be asked again, and when.
func retryAfter(resp *http.Response, now time.Time) (time.Duration, bool) {
	text := resp.Header.Get("Retry-After")
	if resp.StatusCode != http.StatusTooManyRequests && resp.StatusCode < 500 || text == "" {
		return 0, false
	}
	if n, err := strconv.ParseUint(text, 10, 31); err == nil {
		return time.Duration(n) * time.Second, true
	}
	at, err := http.ParseTime(text)
	return max(at.Sub(now), 0), err == nil
}

// loopback reports whether a URL leads to this machine.
func loopback(u *url.URL) bool {
	host := u.Hostname()
	ip := net.ParseIP(host)
	return host == "localhost" || strings.HasSuffix(host, ".localhost") || ip != nil && ip.IsLoopback()
}

// short is an answer that may not be long.
type short struct {
	io.ReadCloser
	left int64
}

func (s *short) Read(b []byte) (int, error) {
	n, err := s.ReadCloser.Read(b)
	if s.left -= int64(n); s.left < 0 {
		return 0, refuse.Invalidf("the registry's answer is longer than %d MiB: no manifest is", mostAnswer>>20)
	}
	return n, err
}
