// Package api tests Berth's API on the nodes of a real root: by Berth's own client, and by one that nobody here wrote.
package api

import (
	"context"
	"net"
	"net/http"
	"os/exec"
	"strings"
	"testing"

	"berth/internal/site/api/server"
	"berth/internal/site/hostapi"
	"berth/internal/site/listen"
	"berth/internal/sys/fork"
	"berth/test/built"
	"berth/test/env"
	"berth/test/testkit"
)

// site is a host with an agent: what stands in for berthd answers its API.
type site struct {
	env.Berth
	socket string
	http   *http.Client
}

// serve starts to answer the API for a new root.
func serve(t *testing.T) *site {
	t.Helper()
	if testing.Short() {
		t.Skip("no nodes with -short")
	}
	testkit.NeedsRoot(t)
	s := &site{Berth: env.New(t, "")}
	l := s.Layout()
	testkit.Must(t, built.Site(t.Context(), s.Dir()), l.Make())
	fork.ActFor(s.Program)
	s.socket = l.AgentSocket()
	listener, err := net.Listen("unix", s.socket)
	if err != nil {
		t.Fatal(err)
	}
	h := server.HTTP((&server.Server{Host: hostapi.Open(l, s.Program)}).Handler())
	go func() { _ = h.Serve(listen.Bound(listener, server.MostConnections, 0)) }()
	s.http = &http.Client{Transport: &http.Transport{DialContext: func(context.Context, string, string) (net.Conn, error) { return net.Dial("unix", s.socket) }}}
	t.Cleanup(func() { _ = h.Close() })
	return s
}

// berth runs a command line here.
func (s *site) berth(in string, args ...string) (out, text string, code int) {
	return s.run(in, append([]string{"--root", s.Root}, args...)...)
}

// remote runs a command line by the agent.
func (s *site) remote(in string, args ...string) (out, text string, code int) {
	return s.run(in, append([]string{"--host", "unix:" + s.socket}, args...)...)
}

func (s *site) run(in string, args ...string) (out, text string, code int) {
	cmd := exec.Command(s.Program, args...)
	cmd.Stdin, cmd.Dir = strings.NewReader(in), s.Dir()
	return env.Try(cmd)
}
