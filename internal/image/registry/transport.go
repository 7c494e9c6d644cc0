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
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
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
	g := newGuard(base, repo.RegistryStr(), p.Insecure, func(text string) { _ = p.tell.say(pull.Answer{Say: text}) })
	base.DialContext, base.Proxy = g.dial, g.proxy
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
// for that, asks nothing of this machine for a registry elsewhere, keeps answers short, and asks again where the registry says when.
type guard struct {
	inner    http.RoundTripper
	plain    bool     // http to other machines is allowed
	registry string   // HOST[:PORT]
	local    bool     // the registry is on this machine or its link, by its name
	proxies  sync.Map // of the environment, each HOST:PORT
	say      func(string)
}

func newGuard(inner http.RoundTripper, registry string, plain bool, say func(string)) *guard {
	host := (&url.URL{Host: registry}).Hostname()
	ip, err := netip.ParseAddr(host)
	local := isLocalhost(host) || err == nil && own(ip.Unmap()) || err != nil && ownName(host)
	return &guard{inner: inner, plain: plain, registry: registry, local: local, say: say}
}

// ownName reports whether the host's own file of names (hosts(5)), which only root writes, gives a name an address of this machine: Debian gives the
// host's name 127.0.1.1.
func ownName(host string) bool {
	text, err := os.ReadFile(hostsFile)
	if err != nil {
		return false // it has no name of its own then
	}
	for line := range strings.Lines(string(text)) {
		line, _, _ = strings.Cut(line, "#")
		fields := strings.Fields(line)
		if len(fields) < 2 || !slices.ContainsFunc(fields[1:], func(name string) bool { return strings.EqualFold(name, host) }) {
			continue
		}
		if ip, err := netip.ParseAddr(fields[0]); err == nil && own(ip.Unmap()) {
			return true
		}
	}
	return false
}

// hostsFile is the file of names. Tests have one of their own.
var hostsFile = "/etc/hosts"

// proxy returns the proxy that the environment names for a request.
func (g *guard) proxy(r *http.Request) (*url.URL, error) {
	u, err := http.ProxyFromEnvironment(r)
	if u != nil {
		g.proxies.Store(hostPort(u), true)
	}
	return u, err
}

// hostPort returns where http.Transport connects to for a proxy.
func hostPort(u *url.URL) string {
	port := u.Port()
	if port == "" {
		port = map[string]string{"http": "80", "https": "443", "socks5": "1080", "socks5h": "1080"}[u.Scheme]
	}
	return net.JoinHostPort(u.Hostname(), port)
}

// dial connects. A registry sends nobody to services of this machine, or of its link, as the data of a cloud's machine at 169.254.169.254: not by a
// redirect, not by the place where tokens are to be had, and not by a name that has such an address, be it its own. A proxy of the environment may be
// there, and all is allowed to a registry that the user named as one of this machine: localhost, an address, or a name that /etc/hosts gives one.
func (g *guard) dial(ctx context.Context, network, address string) (net.Conn, error) {
	d := net.Dialer{Timeout: 30 * time.Second, KeepAlive: 30 * time.Second} // as http.DefaultTransport
	if _, proxy := g.proxies.Load(address); !proxy && !g.local {
		d.Control = func(_, at string, _ syscall.RawConn) error {
			if to, err := netip.ParseAddrPort(at); err == nil && own(to.Addr().Unmap()) {
				return refuse.Cannotf("name a registry of this machine localhost, by its address, or by a name in /etc/hosts",
					"the pull from %s leads to %s at %s, which is this machine or its link, and no registry elsewhere", g.registry, clean(address), to.Addr())
			}
			return nil
		}
	}
	return d.DialContext(ctx, network, address)
}

// own reports whether an address is one of this machine's loopback, or of its link alone.
func own(a netip.Addr) bool { return a.IsLoopback() || a.IsLinkLocalUnicast() || a.IsUnspecified() }

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
	if r.URL.Scheme != "https" && !g.plain && (!g.local || !loopback(r.URL)) {
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
		g.say(fmt.Sprintf("%s answers %s and asks to wait %s", clean(r.URL.Host), clean(resp.Status), wait.Round(time.Second)))
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
	return isLocalhost(host) || ip != nil && ip.IsLoopback()
}

func isLocalhost(name string) bool {
	return name == "localhost" || strings.HasSuffix(name, ".localhost")
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
