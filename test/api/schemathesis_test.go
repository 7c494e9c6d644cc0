package api

import (
	"context"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"
	"time"
)

// TestSchemathesis lets a fuzzer that knows the API by its OpenAPI document alone ask for what it likes, for BERTH_API_SECONDS: no
// answer may be an error of the server's, or one that the document does not know.
func TestSchemathesis(t *testing.T) {
	program, err := filepath.Abs("../../build/schemathesis/bin/schemathesis")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(program); err != nil {
		t.Skip("no schemathesis: scripts/schemathesis installs it")
	}
	s := serve(t)
	seconds := 120
	if text := os.Getenv("BERTH_API_SECONDS"); text != "" {
		if seconds, err = strconv.Atoi(text); err != nil {
			t.Fatal(err)
		}
	}
	at := s.loopback(t)
	dir := t.TempDir()
	config := "[parameters]\n\"query.follow\" = false\n\"header.Last-Event-ID\" = \"\"\n"
	if err := os.WriteFile(filepath.Join(dir, "schemathesis.toml"), []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Duration(seconds)*time.Second+3*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, program, "--no-color", "run", "http://"+at+"/v1/openapi.json",
		"--checks", "not_a_server_error,status_code_conformance,content_type_conformance,response_headers_conformance,response_schema_conformance,unsupported_method,allow_header_conformance",
		"--max-time", strconv.Itoa(seconds), "--seed", "7611", "--workers", "1", // CPython 3.11 fails with two threads that parse (gh-106905)
		"--request-timeout", "30", "--continue-on-failure",
		"--suppress-health-check", "all", "--warnings", "off")
	cmd.Dir = dir
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Errorf("%v\n%s", err, out)
	}
	t.Logf("%s", out[max(0, len(out)-2000):])
}

// loopback passes connections of a port of the loopback on to the agent's socket.
func (s *site) loopback(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				to, err := net.Dial("unix", s.socket)
				if err != nil {
					return
				}
				defer to.Close()
				go func() { _, _ = io.Copy(to, c); to.Close() }()
				_, _ = io.Copy(c, to)
			}()
		}
	}()
	return l.Addr().String()
}
