// Package client is the client of agents: over the unix socket of this host, or over TLS with the caller's certificate.
package client

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/url"
	"strings"
	"syscall"
	"time"

	"berth/internal/site/api"
	"berth/internal/site/certs"
	"berth/internal/sys/jsonfile"
	"berth/internal/sys/refuse"
)

// Port is the port of an agent.
const Port = "7611"

// Client asks one agent.
type Client struct {
	target string // for messages
	base   string
	http   *http.Client
}

// New returns a client of the agent at target: unix:SOCKET, or NAME[:PORT] with this configuration of TLS.
func New(target string, config func(host string) (*tls.Config, error)) (*Client, error) {
	transport := &http.Transport{MaxIdleConns: 2, IdleConnTimeout: time.Minute, TLSHandshakeTimeout: 10 * time.Second}
	c := &Client{target: target, base: "http://berthd", http: &http.Client{Transport: transport}}
	var d net.Dialer
	if socket, ok := strings.CutPrefix(target, "unix:"); ok {
		c.target = socket
		transport.DialContext = func(ctx context.Context, _, _ string) (net.Conn, error) { return d.DialContext(ctx, "unix", socket) }
		return c, nil
	}
	host, port, err := net.SplitHostPort(target)
	if err != nil {
		host, port = strings.Trim(target, "[]"), Port
	}
	if host == "" || strings.ContainsAny(host, "/ @") {
		return nil, refuse.Invalidf("--host %q: want NAME, NAME:PORT or unix:SOCKET", target)
	}
	if transport.TLSClientConfig, err = config(host); err != nil {
		return nil, err
	}
	transport.TLSClientConfig.NextProtos = []string{"http/1.1"} // a websocket begins as a request of HTTP/1.1
	d.Timeout = 10 * time.Second
	transport.DialContext = d.DialContext
	c.base = "https://" + net.JoinHostPort(host, port)
	return c, nil
}

// Do asks for one document. in is the document that is sent, nil for none; out takes the answer, nil for none.
func (c *Client) Do(ctx context.Context, method, path string, query url.Values, in, out any) error {
	var body io.Reader
	if in != nil {
		text, err := jsonfile.Marshal(in)
		if err != nil {
			return err
		}
		body = bytes.NewReader(text)
	}
	at := c.base + path
	if len(query) > 0 {
		at += "?" + query.Encode()
	}
	req, err := http.NewRequestWithContext(ctx, method, at, body)
	if err != nil {
		return refuse.Invalidf("ask %s: %w", c.target, err)
	}
	if in != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	answer, err := c.http.Do(req)
	if err != nil {
		return c.unreached(err)
	}
	defer answer.Body.Close()
	if answer.StatusCode >= http.StatusBadRequest {
		return c.problem(answer)
	}
	if out == nil || answer.StatusCode == http.StatusNoContent {
		return nil
	}
	if err := json.NewDecoder(answer.Body).Decode(out); err != nil {
		if late(err) {
			return c.unreached(err)
		}
		return fmt.Errorf("read the answer of %s: %w", c.target, err)
	}
	return nil
}

// problem makes the refusal again of which an answer tells.
func (c *Client) problem(answer *http.Response) error {
	var p api.Problem
	kind, _, _ := strings.Cut(answer.Header.Get("Content-Type"), ";")
	if err := json.NewDecoder(io.LimitReader(answer.Body, 1<<20)).Decode(&p); kind != api.ProblemType || err != nil {
		return fmt.Errorf("%s answers %s, and not as an agent of Berth does", c.target, answer.Status)
	}
	return refusal(p)
}

// refusal is the refusal of a problem.
func refusal(p api.Problem) error {
	kind := refuse.Kind(p.Code)
	if kind < refuse.Failed || kind > refuse.Differs {
		kind = refuse.Failed
	}
	return &refuse.Error{Kind: kind, What: p.Detail, Remedy: p.Remedy}
}

// late reports whether an agent took longer to be reached, or to answer, than it may.
func late(err error) bool {
	t, ok := errors.AsType[net.Error](err) // the end of a context's time is one, too
	return ok && t.Timeout()
}

// unreached says why an agent could not be asked.
func (c *Client) unreached(err error) error {
	if asked, ok := errors.AsType[*url.Error](err); ok {
		err = asked.Err
	}
	remedy := "on that host, pgrep -a berthd says whether its agent runs"
	switch {
	case errors.Is(err, context.Canceled):
		return err
	case late(err):
		return &refuse.Error{Kind: refuse.Failed, What: fmt.Sprintf("ask the agent of %s: it did not answer in time", c.target), Remedy: remedy, Err: err}
	case errors.Is(err, fs.ErrPermission):
		remedy = "root and the group berth may ask the agent"
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, syscall.ECONNREFUSED) && strings.HasPrefix(c.base, "http:"):
		return refuse.Cannotf("start berthd there (with systemd: systemctl start berthd); hosts without one need no --host", "no agent runs at %s", c.target)
	}
	if explained := certs.Explain(c.target, err); refuse.KindOf(explained) != refuse.Failed {
		return explained
	}
	return &refuse.Error{Kind: refuse.Failed, What: fmt.Sprintf("ask the agent of %s: %v", c.target, err), Remedy: remedy, Err: err}
}
