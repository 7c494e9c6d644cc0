package api

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"berth/test/testkit"
)

// TestSchemathesis lets a fuzzer that knows the API by its OpenAPI document alone ask for what it likes, for BERTH_API_SECONDS: no
// answer may be an error of the server's, or one that the document does not know. What the fuzzer finds fails the test. What breaks
// the fuzzer itself does not, once it has asked enough.
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
	ctx, cancel := context.WithTimeout(t.Context(), time.Duration(seconds)*time.Second+3*testkit.Bound())
	defer cancel()
	report := filepath.Join(dir, "report.ndjson")
	cmd := exec.CommandContext(ctx, program, "--no-color", "run", "http://"+at+"/v1/openapi.json",
		"--checks", "not_a_server_error,status_code_conformance,content_type_conformance,response_headers_conformance,response_schema_conformance,unsupported_method,allow_header_conformance",
		"--max-time", strconv.Itoa(seconds), "--seed", "7611", "--workers", "1", // CPython 3.11 fails with two threads that parse (gh-106905)
		"--request-timeout", strconv.Itoa(int(testkit.Bound().Seconds())), "--continue-on-failure",
		"--report", "ndjson", "--report-ndjson-path", report,
		"--suppress-health-check", "all", "--warnings", "off")
	cmd.Dir = dir
	out, ended := cmd.CombinedOutput()
	t.Logf("%s", out[max(0, len(out)-2000):])
	f := readFuzzed(t, report)
	t.Logf("%d cases", f.cases)
	for _, what := range f.findings {
		t.Errorf("%s", what)
	}
	for _, what := range f.internal {
		t.Logf("the fuzzer's own error: %s", what)
	}
	if ended != nil && len(f.findings) == 0 {
		t.Logf("the fuzzer ended with %v and found nothing", ended)
	}
	if len(f.findings) == 0 && (f.cases == 0 || ended != nil && f.cases < fewest) {
		t.Errorf("the fuzzer came to %d cases only, so it says nothing about the API: %v\n%s", f.cases, ended, out)
	}
}

// fewest is how many cases a run of the fuzzer must have asked, so that it says something although the fuzzer itself failed.
const fewest = 200

// fuzzed is what the fuzzer's report says.
type fuzzed struct {
	cases    int
	findings []string // answers that break the document, and requests without an answer
	internal []string // errors of the fuzzer itself
}

// noAnswer finds the errors that the fuzzer has when the server does not answer.
var noAnswer = regexp.MustCompile(`ServerUnavailable|stopped responding|Unhealthy|Unresponsive|Connection(Reset|Error| aborted| refused)|Remote end closed|[Tt]imed ?out|ReadTimeout|ChunkedEncoding`)

// readFuzzed reads the fuzzer's report, a line of JSON for each event. Where the fuzzer crashed, its last line may be torn.
func readFuzzed(t *testing.T, path string) (f fuzzed) {
	t.Helper()
	file, err := os.Open(path)
	if err != nil {
		t.Logf("no report: %v", err)
		return f
	}
	defer file.Close()
	for lines := json.NewDecoder(file); ; {
		var event struct {
			NonFatalError, FatalError json.RawMessage
			ScenarioFinished          struct {
				Recorder struct {
					Cases  map[string]json.RawMessage
					Checks map[string][]struct {
						Name, Status string
						Failure      json.RawMessage `json:"failure_info"`
					}
				}
			}
		}
		if err := lines.Decode(&event); err != nil {
			if !errors.Is(err, io.EOF) {
				f.internal = append(f.internal, fmt.Sprintf("its report ends early: %v", err))
			}
			return f
		}
		f.cases += len(event.ScenarioFinished.Recorder.Cases)
		for _, checks := range event.ScenarioFinished.Recorder.Checks {
			for _, c := range checks {
				if c.Status == "failure" {
					f.findings = append(f.findings, fmt.Sprintf("%s: %.1000s", c.Name, c.Failure))
				}
			}
		}
		for _, text := range []json.RawMessage{event.NonFatalError, event.FatalError} {
			switch what := fmt.Sprintf("%.1000s", text); {
			case len(text) == 0:
			case noAnswer.Match(text):
				f.findings = append(f.findings, what)
			default:
				f.internal = append(f.internal, what)
			}
		}
	}
}

// TestReportOfAFuzzer reads a report of a fuzzer that found something, lost the server, failed, and was killed.
func TestReportOfAFuzzer(t *testing.T) {
	path := filepath.Join(t.TempDir(), "report")
	text := `{"Initialize": {"seed": 1}}
{"ScenarioFinished": {"status": "failure", "recorder": {"label": "GET /a", "cases": {"x": {}, "y": {}}, "checks": {"x": [{"name": "not_a_server_error", "status": "failure", "failure_info": {"failure": {"type": "ServerError"}}}], "y": [{"name": "not_a_server_error", "status": "success"}]}}}}
{"ScenarioFinished": {"status": "skip", "recorder": {"label": "GET /b"}}}
{"NonFatalError": {"value": {"type": "RecursionError", "message": "maximum recursion depth exceeded"}}}
{"NonFatalError": {"value": {"type": "ConnectionError", "message": "Connection aborted."}}}
{"ScenarioFin`
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	f := readFuzzed(t, path)
	if f.cases != 2 || len(f.findings) != 2 || len(f.internal) != 2 || !strings.HasPrefix(f.findings[0], "not_a_server_error: ") || !strings.Contains(f.internal[0], "Recursion") {
		t.Errorf("%+v", f)
	}
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
