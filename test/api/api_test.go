// Package api tests Berth's API on the nodes of a real root: by Berth's own client, and by one that nobody here wrote.
package api

import (
	"bytes"
	"context"
	"errors"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"berth/internal/site/api/server"
	"berth/internal/site/hostapi"
	"berth/internal/sys/fork"
	"berth/internal/sys/layout"
	"berth/test/built"
)

// site is a host with an agent: what stands in for berthd answers its API.
type site struct {
	bin, root, socket string
	http              *http.Client
}

// serve starts to answer the API for a new root.
func serve(t *testing.T) *site {
	t.Helper()
	if testing.Short() {
		t.Skip("no nodes with -short")
	}
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	dir := t.TempDir()
	for d := dir; d != os.TempDir() && d != "/"; d = filepath.Dir(d) { // nodes, whose users have no rights here, traverse it
		if err := os.Chmod(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	s := &site{bin: filepath.Join(dir, "bin"), root: filepath.Join(dir, "root")}
	program := filepath.Join(s.bin, "berth")
	err := os.Mkdir(s.bin, 0o755)
	if err == nil {
		err = built.Berth(t.Context(), program)
	}
	if err == nil {
		err = built.Site(t.Context(), s.bin)
	}
	if err != nil {
		t.Fatal(err)
	}
	l := layout.New(s.root)
	if err := l.Make(); err != nil {
		t.Fatal(err)
	}
	fork.ActFor(program)
	s.socket = l.AgentSocket()
	listener, err := net.Listen("unix", s.socket)
	if err != nil {
		t.Fatal(err)
	}
	h := server.HTTP((&server.Server{Host: hostapi.Open(l, program)}).Handler())
	go func() { _ = h.Serve(server.Limit(listener, server.MostConnections)) }()
	s.http = &http.Client{Transport: &http.Transport{DialContext: func(context.Context, string, string) (net.Conn, error) { return net.Dial("unix", s.socket) }}}
	t.Cleanup(func() {
		_ = h.Close()
		out, _, _ := s.berth("", "ls", "--json")
		for _, name := range names(out) {
			if _, text, code := s.berth("", "rm", "--force", name); code != 0 {
				t.Errorf("berth rm %s: %s", name, text)
			}
		}
	})
	return s
}

// names finds the nodes in the output of berth ls --json.
func names(list string) (all []string) {
	for line := range strings.Lines(list) {
		if name, ok := strings.CutPrefix(strings.TrimSpace(line), `"name": "`); ok {
			all = append(all, strings.TrimSuffix(name, `",`))
		}
	}
	return all
}

// berth runs a command line here.
func (s *site) berth(in string, args ...string) (out, text string, code int) {
	return s.run(in, append([]string{"--root", s.root}, args...)...)
}

// remote runs a command line by the agent.
func (s *site) remote(in string, args ...string) (out, text string, code int) {
	return s.run(in, append([]string{"--host", "unix:" + s.socket}, args...)...)
}

func (s *site) run(in string, args ...string) (out, text string, code int) {
	var stdout, stderr bytes.Buffer
	cmd := exec.Command(filepath.Join(s.bin, "berth"), args...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(in), &stdout, &stderr
	cmd.Dir = filepath.Dir(s.bin)
	err := cmd.Run()
	if ended, ok := errors.AsType[*exec.ExitError](err); ok {
		code = ended.ExitCode()
	} else if err != nil {
		return "", err.Error(), -1
	}
	return stdout.String(), stderr.String(), code
}
