package server

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"berth/internal/node"
	"berth/internal/node/events"
	"berth/internal/site/api"
	"berth/internal/site/listen"
	"berth/internal/spec/roles"
	"berth/test/testkit"
)

// fake is a host of which only some is asked.
type fake struct {
	Host
	nodes []node.Status
	file  events.File
}

func (f *fake) Nodes(context.Context) ([]node.Status, error) { return f.nodes, nil }
func (f *fake) Events() events.File                          { return f.file }
func (f *fake) Facts(context.Context) (api.HostFacts, error) { panic("a fault") }

// many is a site with many nodes.
type many struct {
	Site
	nodes []api.SiteNode
}

func (m *many) Nodes(context.Context) ([]api.SiteNode, string, error) { return m.nodes, "", nil }

// asked sends a request as somebody.
func asked(s *Server, w roles.Who, method, target, body string) *httptest.ResponseRecorder {
	r := httptest.NewRequest(method, target, strings.NewReader(body))
	r.Header.Set("Content-Type", "application/json")
	answer := httptest.NewRecorder()
	s.Handler().ServeHTTP(answer, r.WithContext(context.WithValue(r.Context(), peer{}, w)))
	return answer
}

func admin() roles.Who { return roles.Who{Name: "root", Role: roles.Admin, Via: roles.ViaUnix} }

// TestTenThousandNodes: the nodes of a site, with filters, in pages; where a run measures in less than 300 ms.
func TestTenThousandNodes(t *testing.T) {
	site := &many{}
	for i := range 10_000 {
		site.nodes = append(site.nodes, api.SiteNode{
			Host: fmt.Sprintf("host-%03d", i%200), Name: fmt.Sprintf("node-%05d", i), Phase: []string{"running", "stopped"}[i%2],
			Owner: []string{"", "ann"}[i%2], Labels: map[string]string{"team": fmt.Sprint(i % 10)}, Addresses: []string{"10.0.0.1/16"},
		})
	}
	s := &Server{Host: &fake{}, Site: site}
	bound := 300 * time.Millisecond
	if info, ok := debug.ReadBuildInfo(); ok && slices.Contains(info.Settings, debug.BuildSetting{Key: "-race", Value: "true"}) {
		bound *= 10 // the race detector's own time
	}
	get := func(w roles.Who, query string) api.SiteNodes {
		t.Helper()
		var answer *httptest.ResponseRecorder
		took := time.Hour
		for range 3 { // the fastest: what else the machine does is not measured
			began := time.Now()
			answer = asked(s, w, http.MethodGet, "/v1/site/nodes?"+query, "")
			took = min(took, time.Since(began))
		}
		var got api.SiteNodes
		if err := json.Unmarshal(answer.Body.Bytes(), &got); err != nil || answer.Code != http.StatusOK {
			t.Fatal(answer.Code, err, answer.Body)
		}
		t.Logf("%-40s %6d nodes in %s", query, len(got.Nodes), took)
		if testkit.Measures() && took > bound {
			t.Errorf("%s took %s", query, took)
		}
		return got
	}
	for query, want := range map[string]int{
		"": 10_000, "phase=running": 5_000, "label=team=3": 1_000, "label=team": 10_000, "label=team=3&phase=running": 0,
		"host=host-007": 50, "name=node-000": 100, "owner=ann": 5_000, "label=nothing": 0,
	} {
		if got := get(admin(), query); len(got.Nodes) != want || got.Continue != "" {
			t.Errorf("%s: %d nodes, want %d; continue %q", query, len(got.Nodes), want, got.Continue)
		}
	}
	if got := get(roles.Who{Name: "ann", Role: roles.Operator}, ""); len(got.Nodes) != 5_000 {
		t.Errorf("an operator sees %d nodes, and has 5,000", len(got.Nodes))
	}
	seen, next := map[string]bool{}, ""
	for {
		got := get(admin(), "phase=running&limit=999&continue="+url.QueryEscape(next))
		for _, n := range got.Nodes {
			if seen[siteKey(n)] {
				t.Fatalf("%s comes twice", siteKey(n))
			}
			seen[siteKey(n)] = true
		}
		if next = got.Continue; next == "" {
			break
		}
	}
	if len(seen) != 5_000 {
		t.Errorf("the pages have %d nodes", len(seen))
	}
}

// TestRefusals: each is a problem, with its status and exit code; a fault of the server's is one too.
func TestRefusals(t *testing.T) {
	s := &Server{Host: &fake{}}
	viewer, operator := roles.Who{Name: "vic", Role: roles.Viewer}, roles.Who{Name: "ann", Role: roles.Operator}
	for _, tc := range []struct {
		who            roles.Who
		method, target string
		body           string
		status         int
	}{
		{roles.Who{}, "GET", "/v1/nodes", "", 403},
		{admin(), "GET", "/v1/nothing", "", 404},
		{admin(), "GET", "/v1//nodes", "", 404},
		{admin(), "PUT", "/v1/nodes", "", 405},
		{admin(), "GET", "/v1/nodes?limit=x", "", 400},
		{admin(), "GET", "/v1/nodes?nothing=1", "", 400},
		{admin(), "GET", "/v1/nodes?state=running&state=stopped", "", 400},
		{admin(), "GET", "/v1/nodes/" + strings.Repeat("a", 300), "", 404},
		{admin(), "GET", "/v1/nodes/..%2f..%2fetc", "", 404},
		{admin(), "POST", "/v1/images", "{", 400},
		{admin(), "POST", "/v1/images", `{"ref": 5}`, 400},
		{admin(), "POST", "/v1/images", `{"nothing": 5}`, 400},
		{admin(), "POST", "/v1/images", `{"ref": "\udce9"}`, 400},
		{admin(), "POST", "/v1/images", "{\"ref\": \"\xe9\"}", 400},
		{admin(), "POST", "/v1/images", `{"ref": "` + strings.Repeat("a", LongestBody) + `"}`, 413},
		{admin(), "GET", "/v1/command", "", 426},
		{admin(), "GET", "/v1/site/hosts", "", 422},
		{admin(), "GET", "/v1/host", "", 500},
		{viewer, "POST", "/v1/nodes", "name: n", 403},
		{operator, "POST", "/v1/nodes", "name: n", 403},
		{operator, "GET", "/v1/command", "", 403},
		{operator, "GET", "/v1/images", "", 403},
		{viewer, "DELETE", "/v1/site/hosts/h", "", 403},
	} {
		answer := asked(s, tc.who, tc.method, tc.target, tc.body)
		var p api.Problem
		err := json.Unmarshal(answer.Body.Bytes(), &p)
		if err != nil || answer.Code != tc.status || p.Status != tc.status || p.Detail == "" || p.Code == 0 || answer.Header().Get("Content-Type") != api.ProblemType {
			t.Errorf("%s %.60s by %s: %d, want %d: %v %.300s", tc.method, tc.target, tc.who, answer.Code, tc.status, err, answer.Body)
		}
	}
}

// TestEventsResume: a client that breaks off goes on behind the last event it has, also when the file has turned over meanwhile;
// behind an event that is not kept any more it is told so.
func TestEventsResume(t *testing.T) {
	f := events.File{Dir: filepath.Join(t.TempDir(), "events")}
	h := httptest.NewUnstartedServer((&Server{Host: &fake{file: f}}).Handler())
	h.Config.ConnContext = func(ctx context.Context, _ net.Conn) context.Context { return context.WithValue(ctx, peer{}, admin()) }
	h.Start()
	defer h.Close()
	at := func(i int) events.Event {
		return events.Event{Time: time.Unix(int64(i), 0).UTC(), Node: strings.Repeat("n", 40), Event: events.Started}
	}
	written := 0
	more := func(n int) {
		t.Helper()
		var all []events.Event
		for range n {
			all = append(all, at(written))
			written++
		}
		if err := f.Append(all, false); err != nil {
			t.Fatal(err)
		}
	}
	// read reads n events of a stream and leaves it, as a client that breaks off.
	read := func(after, accept string, n int) (ids []string) {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), testkit.Bound())
		defer cancel()
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, h.URL+"/v1/events?follow=true", nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Accept", accept)
		if after != "" {
			req.Header.Set("Last-Event-ID", after)
		}
		answer, err := http.DefaultClient.Do(req)
		if err != nil || answer.StatusCode != http.StatusOK {
			t.Fatal(answer, err)
		}
		defer answer.Body.Close()
		for lines := bufio.NewScanner(answer.Body); len(ids) < n && lines.Scan(); {
			var e told
			text := strings.TrimPrefix(lines.Text(), "data: ")
			if json.Unmarshal([]byte(text), &e) == nil && e.ID != "" {
				ids = append(ids, e.ID)
			}
		}
		if len(ids) < n {
			t.Fatalf("%d events of %d", len(ids), n)
		}
		return ids
	}
	more(100)
	first := read("", "application/x-ndjson", 60)
	if want := eventID(at(59)); first[59] != want {
		t.Fatalf("the last is %s, want %s", first[59], want)
	}
	more(13_000) // more than a part: the file turns over with the next ones
	more(100)
	rest := read(first[59], "text/event-stream", written-60)
	for i, id := range rest {
		if want := eventID(at(60 + i)); id != want {
			t.Fatalf("event %d is %s, want %s", 60+i, id, want)
		}
	}
	more(13_000)
	more(13_000)
	answer, err := http.Get(h.URL + "/v1/events?after=" + first[0])
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	if text, _ := io.ReadAll(answer.Body); answer.StatusCode != http.StatusGone {
		t.Errorf("behind an event that is gone: %d %s", answer.StatusCode, text[:min(200, len(text))])
	}
}

// TestBounded: 10,000 connections that say nothing, and bodies and headers that never end, hold no more than their bounds.
func TestBounded(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	const most = mostSilent - 10
	limit := listen.Bound(l, most, 0)
	h := HTTP((&Server{Host: &fake{}, Patience: 300 * time.Millisecond}).Handler())
	h.ReadHeaderTimeout = 2 * time.Second
	h.ConnContext = func(ctx context.Context, _ net.Conn) context.Context { return context.WithValue(ctx, peer{}, admin()) }
	go func() { _ = h.Serve(limit) }()
	defer h.Close()
	slow, err := net.Dial("tcp", l.Addr().String())
	if err == nil {
		defer slow.Close()
		_, err = slow.Write([]byte("POST /v1/images HTTP/1.1\r\nHost: b\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n{"))
	}
	if err != nil {
		t.Fatal(err)
	}
	_ = slow.SetReadDeadline(time.Now().Add(testkit.Bound()))
	if line, err := bufio.NewReader(slow).ReadString('\n'); err != nil || !strings.Contains(line, "408") {
		t.Errorf("a body that does not come: %q, %v", line, err)
	}
	var worst atomic.Int64
	for range 10_000 {
		c, err := net.Dial("tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		worst.Store(max(worst.Load(), int64(limit.Open())))
		if worst.Load() > most {
			t.Fatalf("%d connections are open", worst.Load())
		}
	}
	if worst.Load() < most {
		t.Errorf("at most %d connections were open", worst.Load())
	}
	testkit.Eventually(t, "no idle connection is open", func() bool { return int64(limit.Open()) == 0 })
	answer, err := http.Get("http://" + l.Addr().String() + "/v1/openapi.json") // whoever comes now is answered
	if err != nil || answer.StatusCode != http.StatusOK {
		t.Fatal(answer, err)
	}
	answer.Body.Close()
}

// TestOverWhileOpen: a request by a certificate that is over is refused, also on a connection that began before.
func TestOverWhileOpen(t *testing.T) {
	for left, want := range map[time.Duration]int{time.Hour: http.StatusOK, -time.Second: http.StatusUnauthorized} {
		leaf := &x509.Certificate{Subject: pkix.Name{CommonName: "eve"}, URIs: []*url.URL{{Scheme: "berth", Host: "role", Path: "/viewer"}}, NotAfter: time.Now().Add(left)}
		r := httptest.NewRequest(http.MethodGet, "/v1/nodes", nil)
		r.TLS = &tls.ConnectionState{PeerCertificates: []*x509.Certificate{leaf}}
		answer := httptest.NewRecorder()
		(&Server{Host: &fake{}}).Handler().ServeHTTP(answer, r)
		if answer.Code != want {
			t.Errorf("%s left: %d %s", left, answer.Code, answer.Body)
		}
	}
}
