// Package serve gives the images of the store to other hosts, read-only, by the OCI distribution protocol, for the program
// berth-registry.
//
// The store keeps no blobs: its layers are unpacked. A blob is the layer as a tar stream whose names are in order (package treetar,
// Layer). It is put together while it is sent, so nothing is stored twice. Its digest differs from that of the archive that the
// layer came from, because the archive is not kept.
package serve

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"berth/internal/sys/layout"
	"berth/internal/sys/refuse"
	"berth/internal/sys/text"
)

// Options say where images are served.
type Options struct {
	Listen    string // ADDRESS:PORT
	Cert, Key string // files in PEM; "": no TLS
	ClientCA  string // the authority of the clients' certificates, in PEM; "": clients need none
}

// The limits. A client of registries has some six connections, and a fleet that pulls at once shares the places for blobs.
const (
	mostConnections = 512
	mostOfOne       = 64 // connections of one address
	mostBlobs       = 64 // blobs that are sent at a time
	mostBlobsOfOne  = 32 // to one address
	mostHeader      = 16 << 10
	quiet           = time.Minute // as long as berth image pull waits for a registry
	readWait        = 30 * time.Second
)

// Run serves the images of a store until ctx ends. It says on out where it listens, and on errs what it does.
//
// Errors: refuse.Invalid for an address that is none, one beyond the loopback without TLS, and certificates that cannot be read;
// refuse.Busy for a port in use.
func Run(ctx context.Context, dirs layout.Layout, o Options, out, errs io.Writer) error {
	secure, err := o.secure()
	if err != nil {
		return err
	}
	if err := o.check(secure != nil); err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Join(dirs.Images(), "tmp"), 0o700); err != nil {
		return err
	}
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", o.Listen)
	if errors.Is(err, unix.EADDRINUSE) {
		return refuse.Busyf("%s: the port is in use", o.Listen)
	}
	if err != nil {
		return refuse.Invalidf("listen on %s: %w", o.Listen, err)
	}
	at := l.Addr()
	logger := slog.New(slog.NewTextHandler(errs, nil))
	h := newHandler(ctx, dirs, logger)
	s, err := h.images()
	if err != nil {
		return err
	}
	for _, name := range s.other {
		logger.Warn("the image has no name that a client could ask for: pull or import it under another", "image", name)
	}
	scheme := "http"
	l = limited(l)
	if secure != nil {
		scheme, l = "https", tls.NewListener(l, secure)
	}
	server := newServer(h, logger)
	stop := context.AfterFunc(ctx, func() { server.Close() })
	defer stop()
	fmt.Fprintf(out, "serving %s at %s://%s\n", text.Count(len(s.all), "image"), scheme, at)
	if err := server.Serve(l); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

func newHandler(ctx context.Context, dirs layout.Layout, logger *slog.Logger) *handler {
	return &handler{
		library: newLibrary(ctx, dirs, func(name string, err error) {
			logger.Error("an image cannot be served", "image", name, "error", err)
		}),
		log: logger, wait: readWait, quiet: quiet, blobs: newPlaces(mostBlobs, mostBlobsOfOne),
	}
}

// newServer makes a server that gives up on clients which are slow or send much. It speaks HTTP/1.1: there, deadlines are those of
// the one request.
func newServer(h *handler, logger *slog.Logger) *http.Server {
	s := &http.Server{
		Handler: h, MaxHeaderBytes: mostHeader, ReadHeaderTimeout: 10 * time.Second, ReadTimeout: 30 * time.Second, IdleTimeout: quiet,
		ErrorLog: slog.NewLogLogger(logger.Handler(), slog.LevelInfo), Protocols: new(http.Protocols),
	}
	s.Protocols.SetHTTP1(true)
	return s
}

// secure reads the certificates. It returns nil if there shall be no TLS.
func (o Options) secure() (*tls.Config, error) {
	if (o.Cert == "") != (o.Key == "") {
		return nil, refuse.Invalidf("--tls-cert and --tls-key belong together")
	}
	if o.Cert == "" {
		if o.ClientCA != "" {
			return nil, refuse.Invalidf("--client-ca needs --tls-cert and --tls-key: without TLS no client has a certificate")
		}
		return nil, nil
	}
	pair, err := tls.LoadX509KeyPair(o.Cert, o.Key)
	if err != nil {
		return nil, refuse.Invalidf("read the certificate %s with the key %s: %w", o.Cert, o.Key, err)
	}
	c := &tls.Config{MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{pair}}
	if o.ClientCA == "" {
		return c, nil
	}
	pem, err := os.ReadFile(o.ClientCA)
	if err != nil {
		return nil, refuse.Invalidf("read the clients' authority: %w", err)
	}
	c.ClientCAs, c.ClientAuth = x509.NewCertPool(), tls.RequireAndVerifyClientCert
	if !c.ClientCAs.AppendCertsFromPEM(pem) {
		return nil, refuse.Invalidf("read the clients' authority: %s holds no certificate in PEM", o.ClientCA)
	}
	return c, nil
}

// check refuses to listen beyond the loopback without TLS: anyone on the network path could read the images, and change what other
// hosts run.
func (o Options) check(secure bool) error {
	host, _, err := net.SplitHostPort(o.Listen)
	if err != nil {
		return refuse.Invalidf("--listen %s: it is not ADDRESS:PORT: %w", o.Listen, err)
	}
	if ip := net.ParseIP(host); secure || ip != nil && ip.IsLoopback() {
		return nil
	}
	return &refuse.Error{
		Kind: refuse.Invalid, What: fmt.Sprintf("--listen %s: images leave this host by TLS only", o.Listen),
		Remedy: "give --tls-cert and --tls-key, or listen on the loopback (127.0.0.1:5000)",
	}
}
