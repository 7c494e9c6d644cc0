package server

import (
	"context"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"berth/internal/node"
	"berth/internal/spec/roles"
	"berth/internal/sys/refuse"
	"berth/test/testkit"
)

// crowded is a host whose answers wait until the test lets them go.
type crowded struct {
	fake
	on chan struct{}

	mu           sync.Mutex
	inside, most int
}

func (c *crowded) wait() {
	c.mu.Lock()
	c.inside++
	c.most = max(c.most, c.inside)
	c.mu.Unlock()
	<-c.on
	c.mu.Lock()
	c.inside--
	c.mu.Unlock()
}

func (c *crowded) has(n int) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.inside == n
}

func (c *crowded) Labels(string) (map[string]string, error) { return nil, refuse.NotFoundf("none") }

func (c *crowded) Nodes(context.Context) ([]node.Status, error) {
	c.wait()
	return nil, nil
}

func (c *crowded) ApplyTemplate(context.Context, roles.Who, string, string, map[string]any, time.Duration) (*node.Outcome, error) {
	c.wait()
	return &node.Outcome{}, nil
}

// TestTurns: of many requests of one caller few are answered at once, more wait, and what is too much is refused. Others do not notice.
func TestTurns(t *testing.T) {
	for _, tc := range []struct {
		role         roles.Role
		method, path string
		most         int
	}{
		{roles.Viewer, http.MethodGet, "/v1/nodes", mostTurns},
		{roles.Operator, http.MethodPost, "/v1/templates/job/nodes", mostActs},
	} {
		h := &crowded{on: make(chan struct{})}
		s := &Server{Host: h}
		const tooMany = 7
		var all sync.WaitGroup
		var refused, well atomic.Int64
		ask := func(name string) {
			all.Go(func() {
				switch answer := asked(s, roles.Who{Name: name, Role: tc.role, Via: roles.ViaTLS}, tc.method, tc.path, `{"name":"n"}`); answer.Code {
				case http.StatusTooManyRequests:
					refused.Add(1)
				case http.StatusOK:
					well.Add(1)
				default:
					t.Errorf("%s %s: %d %s", tc.method, tc.path, answer.Code, answer.Body)
				}
			})
		}
		for range tc.most + mostWaiting + tooMany {
			ask("ann")
		}
		testkit.Eventually(t, "as many are answered as may be, and what is too much is refused", func() bool {
			return h.has(tc.most) && refused.Load() == tooMany
		})
		ask("bob")
		testkit.Eventually(t, "another is answered", func() bool { return h.has(tc.most + 1) })
		close(h.on)
		all.Wait()
		if h.most != tc.most+1 || well.Load() != int64(tc.most+mostWaiting+1) {
			t.Errorf("%s: %d at once, %d well", tc.path, h.most, well.Load())
		}
		if len(s.bounds.turns) != 0 {
			t.Errorf("%s: %d callers are kept", tc.path, len(s.bounds.turns))
		}
	}
}

// TestLargeDocuments: a document that grows when it is read is refused by its length. A spec, which is bounded otherwise, may be larger.
func TestLargeDocuments(t *testing.T) {
	nested := `{"name":"n","parameters":{"x":[` + strings.Repeat("[],", longestDocument/3) + `[]]}}`
	for _, tc := range []struct {
		role         roles.Role
		method, path string
	}{
		{roles.Operator, http.MethodPost, "/v1/templates/job/nodes"},
		{roles.Admin, http.MethodPost, "/v1/images"},
		{roles.Admin, http.MethodPatch, "/v1/nodes/n/limits"},
	} {
		answer := asked(&Server{Host: &acting{during: func() {}}}, roles.Who{Name: "ann", Role: tc.role}, tc.method, tc.path, nested)
		if answer.Code != http.StatusRequestEntityTooLarge || !strings.Contains(answer.Body.String(), "at most 64KiB") {
			t.Errorf("%s: %d %.300s", tc.path, answer.Code, answer.Body)
		}
	}
	spec := "name: a\nimage: host\ncommand: [/bin/true]\n#" + strings.Repeat("x", 2*longestDocument)
	if answer := asked(&Server{Host: &acting{during: func() {}}}, admin(), http.MethodPost, "/v1/nodes", spec); answer.Code != http.StatusUnsupportedMediaType && answer.Code != http.StatusOK {
		t.Errorf("a large spec: %d %.300s", answer.Code, answer.Body)
	}
}
