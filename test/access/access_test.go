// Package access tests who is let in to an agent's API and what they may do there: hostile requests over real TLS to a real host.
package access

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"berth/internal/site/api"
	"berth/internal/site/api/server"
	"berth/internal/site/audit"
	"berth/internal/site/certs"
	"berth/internal/site/hostapi"
	"berth/internal/site/listen"
	"berth/internal/spec/roles"
	"berth/internal/sys/fork"
	"berth/test/env"
	"berth/test/testkit"
)

// job is the template of the tests. What no parameter sets is what a hostile request tries to reach.
const job = `description: a job
parameters:
  cpus:   {sets: cpu.max, type: number, min: 0.1, default: 1}
  memory: {sets: memory.max, type: size, min: 16MiB, max: 64MiB}
  tasks:  {sets: pids, type: integer, min: 8, max: 64}
  image:  {sets: image, type: choice, of: [host, "oci:debian"], default: host}
  queue:  {sets: labels.queue, type: choice, of: [short, long], default: short}
  user:   {sets: env.JOB_USER, type: string, pattern: "[a-z]+", length: 16, default: nobody}
  note:   {sets: env.NOTE, type: string, pattern: ".*", length: 40, default: none}
  args:   {sets: args, type: list, pattern: "[0-9]+", words: 2}
node:
  image: host
  command: [/bin/sleep, "600"]
  cpu: {max: 2}
  memory: {max: 64MiB}
  mounts: [{source: /etc/hostname, target: /srv/name, read_only: true}]
`

// host is a host with an agent: what stands in for berthd answers its API over TLS.
type host struct {
	env.Berth
	audit, address string
	signer         *certs.Signer
	clients        map[string]*http.Client
	nodes          *hostapi.Host
}

func serve(t *testing.T, before ...func(*host)) *host {
	t.Helper()
	if testing.Short() {
		t.Skip("no nodes with -short")
	}
	testkit.NeedsRoot(t)
	testkit.Final(t, "somebody could do what the rights do not allow, or could not do what they allow")
	h := &host{Berth: env.New(t, ""), clients: map[string]*http.Client{}}
	h.audit = filepath.Join(h.Dir(), "log/audit.log")
	testkit.Must(t, h.Layout().Make())
	testkit.Must(t, os.MkdirAll(h.Layout().Etc("templates"), 0o755))
	testkit.Must(t, os.WriteFile(h.Layout().Etc("templates/job.yaml"), []byte(job), 0o644))
	testkit.Must(t, os.WriteFile(h.Layout().Etc("templates/open.yaml"), []byte(job), 0o646))
	testkit.Must(t, os.WriteFile(h.Layout().Etc("outside.yaml"), []byte(job), 0o644))
	testkit.Must(t, os.Chmod(h.Layout().Etc("templates/open.yaml"), 0o646))
	var err error
	h.signer, err = certs.Init(h.Layout().Etc("ca"))
	testkit.Must(t, err)
	env.Certify(t, h.signer, h.Layout().Etc("certs"), "node1", roles.Host, "127.0.0.1")
	for name, role := range map[string]roles.Role{"root": roles.Admin, "ann": roles.Operator, "bob": roles.Operator, "eve": roles.Viewer, "node2": roles.Host} {
		folder := filepath.Join(h.Dir(), name)
		env.Certify(t, h.signer, folder, name, role, "127.0.0.1")
		config, err := certs.Client(folder, "node1")
		testkit.Must(t, err)
		h.clients[name] = &http.Client{Transport: &http.Transport{TLSClientConfig: config, MaxIdleConns: 2}, Timeout: testkit.Bound()}
		t.Cleanup(h.clients[name].CloseIdleConnections)
	}
	for _, b := range before {
		b(h)
	}
	h.listen(t)
	return h
}

func (h *host) listen(t *testing.T) {
	t.Helper()
	fork.ActFor(h.Program)
	plain, err := net.Listen("tcp", "127.0.0.1:0")
	testkit.Must(t, err)
	l, err := certs.Listen(t.Context(), listen.Bound(plain, 100, 0), h.Layout().Etc("certs"))
	testkit.Must(t, err)
	h.address = "https://" + plain.Addr().String()
	log, err := audit.Open(h.audit)
	testkit.Must(t, err)
	h.nodes = hostapi.Open(h.Layout(), h.Program)
	s := server.HTTP((&server.Server{Host: h.nodes, Audit: log.Keep, Renew: server.Renewal(h.signer, log.Keep)}).Handler())
	go func() { _ = s.Serve(l) }()
	t.Cleanup(func() {
		_ = s.Close() // the listener ends with the test's context
		all, err := h.nodes.Names()
		testkit.Must(t, err)
		for _, name := range all {
			testkit.Must(t, h.nodes.Remove(context.Background(), name, true, ""))
		}
		testkit.Must(t, log.Close())
	})
}

// operator is an operator with a certificate.
func operator(name string) roles.Who {
	return roles.Who{Name: name, Role: roles.Operator, Via: roles.ViaTLS}
}

// ask sends one request and returns the status and the answer.
func (h *host) ask(t *testing.T, who, method, path, kind, body string) (int, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, h.address+path, strings.NewReader(body))
	testkit.Must(t, err)
	if kind != "" {
		req.Header.Set("Content-Type", kind)
	}
	answer, err := h.clients[who].Do(req)
	if err != nil {
		t.Fatalf("%s %s as %s: %v", method, path, who, err)
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	testkit.Must(t, err)
	return answer.StatusCode, string(text)
}

// TestHostileRequests sends them all. None does anything: the nodes are as they were, and the audit has a line for each.
func TestHostileRequests(t *testing.T) {
	h := serve(t)
	if status, text := h.ask(t, "bob", "POST", template, asJSON, fill("theirs", `"cpus": 0.5`)); status != 200 {
		t.Fatalf("%d %s", status, text)
	}
	if status, text := h.ask(t, "root", "POST", "/v1/nodes", "application/yaml", "name: free\nimage: host\ncommand: [/bin/sleep, \"600\"]\n"); status != 200 {
		t.Fatalf("%d %s", status, text)
	}
	before := h.state(t)
	all := hostile()
	if len(all) < 50 {
		t.Errorf("%d requests, not 50", len(all))
	}
	for _, r := range all {
		kind := asJSON
		if r.path == "/v1/nodes" {
			kind = "application/yaml"
		}
		status, text := h.ask(t, r.who, r.method, r.path, kind, r.body)
		var p api.Problem
		if err := json.Unmarshal([]byte(text), &p); err != nil || p.Status != status || p.Code == 0 {
			t.Errorf("%s: no problem but %.200s", r.what, text)
		}
		if status != r.status || !strings.Contains(p.Detail+p.Remedy, r.says) {
			t.Errorf("%s: %d %s; %s\nwant %d …%s…", r.what, status, p.Detail, p.Remedy, r.status, r.says)
		}
	}
	if diff := cmp.Diff(before, h.state(t)); diff != "" {
		t.Errorf("the nodes are not as they were:\n%s", diff)
	}
	t.Logf("%d requests were refused", len(all))
	h.checkAudit(t, len(all)+2)
	h.checkOwn(t)
}

// state is all that the nodes were asked for and are, as their admin sees it.
func (h *host) state(t *testing.T) map[string]any {
	t.Helper()
	all := map[string]any{}
	names, err := h.nodes.Names()
	testkit.Must(t, err)
	for _, name := range names {
		spec, err := h.nodes.Spec(name)
		testkit.Must(t, err)
		all[name] = spec
	}
	list, err := h.nodes.Nodes(t.Context())
	testkit.Must(t, err)
	for _, s := range list {
		all[s.Name+" is"] = s.State
	}
	return all
}

// checkAudit counts the lines of the audit, each of which is one of JSON.
func (h *host) checkAudit(t *testing.T, want int) {
	t.Helper()
	text, err := os.ReadFile(h.audit)
	testkit.Must(t, err)
	others, err := os.ReadFile(audit.Reads(h.audit))
	testkit.Must(t, err)
	text = append(text, others...)
	results := map[string]int{}
	for line := range bytes.Lines(text) {
		var l audit.Line
		if err := json.Unmarshal(line, &l); err != nil || l.Who == "" || l.Role == "" || l.From == "" || l.Via != roles.ViaTLS {
			t.Errorf("%s: %v", line, err)
		}
		if l.Result != audit.Begins { // it is followed by what came of it
			results[l.Result]++
		}
	}
	if diff := cmp.Diff(map[string]int{audit.Done: 2, audit.Refused: want - 2}, results); diff != "" {
		t.Errorf("the audit:\n%s", diff)
	}
}

// checkOwn checks that what is not hostile works: operators see their own nodes and end them; a viewer sees all.
func (h *host) checkOwn(t *testing.T) {
	t.Helper()
	for who, want := range map[string][]string{"ann": nil, "bob": {"theirs"}, "eve": {"free", "theirs"}, "root": {"free", "theirs"}} {
		status, text := h.ask(t, who, "GET", "/v1/nodes", "", "")
		var got struct {
			Nodes []struct{ Name string }
		}
		testkit.Must(t, json.Unmarshal([]byte(text), &got))
		var names []string
		for _, n := range got.Nodes {
			names = append(names, n.Name)
		}
		if diff := cmp.Diff(want, names); diff != "" || status != 200 {
			t.Errorf("%s sees, with status %d:\n%s", who, status, diff)
		}
	}
	for who, want := range map[string]int{"ann": 200, "eve": 200, "node2": 403} {
		status, text := h.ask(t, who, "GET", "/v1/templates", "", "")
		var got struct{ Templates []api.Template }
		if status != want {
			t.Errorf("the templates, for %s: %d %s", who, status, text)
		}
		if want != 200 {
			continue
		}
		testkit.Must(t, json.Unmarshal([]byte(text), &got))
		if len(got.Templates) != 2 || got.Templates[0].Name != "job" || got.Templates[0].Parameters["memory"].Sets != "memory.max" || got.Templates[1].Error == "" ||
			strings.Contains(text, "/srv/name") {
			t.Errorf("the templates, for %s: %s", who, text)
		}
	}
	spec, err := h.nodes.Spec("theirs")
	testkit.Must(t, err)
	if spec.Labels[roles.OwnerLabel] != "bob" || spec.Labels[roles.TemplateLabel] != "job" || spec.CPU.Max != 500 || len(spec.Mounts) != 1 {
		t.Errorf("the node of the template: %+v", spec)
	}
	if status, text := h.ask(t, "bob", "DELETE", "/v1/nodes/theirs?force=true", "", ""); status != 200 {
		t.Errorf("the end of their own node: %d %s", status, text)
	}
}

// TestRevokedInTheMiddle revokes somebody whose connection is open.
func TestRevokedInTheMiddle(t *testing.T) {
	h := serve(t)
	if status, text := h.ask(t, "eve", "GET", "/v1/host", "", ""); status != 200 {
		t.Fatalf("%d %s", status, text)
	}
	_, err := h.signer.Revoke(t.Context(), "eve")
	testkit.Must(t, err)
	list, err := h.signer.Revoked()
	testkit.Must(t, err)
	changed, err := certs.Update(h.Layout().Etc("certs"), list)
	testkit.Must(t, err)
	if !changed {
		t.Error("the list was not newer")
	}
	since := time.Now()
	testkit.Eventually(t, "the revoked certificate is refused", func() bool { // a request that came before the agent was woken is answered
		var req *http.Request
		req, err = http.NewRequestWithContext(t.Context(), http.MethodGet, h.address+"/v1/host", nil)
		testkit.Must(t, err)
		var answer *http.Response
		if answer, err = h.clients["eve"].Do(req); err == nil {
			answer.Body.Close()
		}
		return err != nil
	})
	if took := time.Since(since); took > 2*time.Second && testkit.Measures() {
		t.Errorf("a revoked certificate was taken for %s", took)
	}
	t.Logf("refused %s after the list changed: %v", time.Since(since).Round(time.Microsecond), err)
	if explained := certs.Explain("node1", err); !strings.Contains(explained.Error(), "does not take this certificate") && !errors.Is(err, io.EOF) {
		t.Errorf("%v", explained)
	}
	if status, text := h.ask(t, "ann", "GET", "/v1/host", "", ""); status != 200 {
		t.Errorf("somebody else: %d %s", status, text)
	}
}

// TestHostRenewsOverTheAPI lets a host's certificate be renewed as its agent does it, and speaks with the new one.
func TestHostRenewsOverTheAPI(t *testing.T) {
	h := serve(t)
	dir := t.TempDir()
	env.Certify(t, h.signer, dir, "node7", roles.Host, "127.0.0.1")
	config, err := certs.Client(dir, "node1")
	testkit.Must(t, err)
	old, err := certs.Current(dir)
	testkit.Must(t, err)
	post := func(request []byte) ([]byte, error) {
		client := &http.Client{Transport: &http.Transport{TLSClientConfig: config.Clone(), DisableKeepAlives: true}}
		answer, err := client.Post(h.address+"/v1/certificates/renew", "application/pkcs10", bytes.NewReader(request))
		if err != nil {
			return nil, err
		}
		defer answer.Body.Close()
		text, err := io.ReadAll(answer.Body)
		if err == nil && answer.StatusCode != 200 {
			err = fmt.Errorf("%s: %s", answer.Status, text)
		}
		return text, err
	}
	next, err := certs.RenewOwn(dir, post)
	testkit.Must(t, err)
	if next.Subject.CommonName != "node7" || certs.Serial(next) == certs.Serial(old) {
		t.Errorf("renewed as %s, %s", next.Subject, certs.Serial(next))
	}
	conn, err := tls.Dial("tcp", strings.TrimPrefix(h.address, "https://"), config)
	testkit.Must(t, err)
	conn.Close()
	if again, err := certs.RenewOwn(dir, post); err != nil || again.Subject.CommonName != "node7" {
		t.Errorf("with the new one: %v", err)
	}
	_, err = h.signer.Revoke(t.Context(), "node7")
	testkit.Must(t, err) // the list is not spread: the authority itself knows
	if _, err := certs.RenewOwn(dir, post); err == nil || !strings.Contains(err.Error(), "is revoked") {
		t.Errorf("a revoked one is renewed: %v", err)
	}
}
