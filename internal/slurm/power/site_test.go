package power

import (
	"encoding/json"
	"net"
	"net/http"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"berth/internal/api"
	"berth/internal/api/client"
	"berth/internal/node"
	"berth/internal/refuse"
)

// TestOtherRights: a node that the agent refuses to make of what is there goes first, once; another's node stays.
func TestOtherRights(t *testing.T) {
	for what, own := range map[string]bool{"a node of before": true, "another's node": false} {
		t.Run(what, func(t *testing.T) {
			var asked []string
			there := true
			l, err := net.Listen("unix", filepath.Join(t.TempDir(), "agent"))
			if err != nil {
				t.Fatal(err)
			}
			s := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
				asked = append(asked, req.Method+" "+req.URL.Path)
				status, body := 200, any(node.Outcome{Node: "st01-01", Did: "created"})
				switch {
				case req.Method == http.MethodDelete && own:
					there = false
				case req.Method == http.MethodDelete:
					status, body = 404, api.Problem{Status: 404, Code: int(refuse.NotFound), Detail: "no node st01-01"}
				case there:
					status, body = 409, api.Problem{Status: 409, Code: int(refuse.Busy), Detail: "it was made with other rights"}
				}
				if status != 200 {
					w.Header().Set("Content-Type", "application/problem+json")
				}
				w.WriteHeader(status)
				_ = json.NewEncoder(w).Encode(body)
			})}
			go func() { _ = s.Serve(l) }()
			t.Cleanup(func() { s.Close() })
			of := &site{addresses: map[string]string{"st01": "unix:" + l.Addr().String()}, agents: map[string]*client.Client{}}
			did, err := of.make(t.Context(), "st01", "worker", "st01-01", nil)
			if own && (err != nil || did != "created") || !own && refuse.KindOf(err) != refuse.Busy {
				t.Errorf("%q, %v", did, err)
			}
			const post = "POST /v1/templates/worker/nodes"
			if diff := cmp.Diff([]string{post, "DELETE /v1/nodes/st01-01", post}, asked); diff != "" {
				t.Error(diff)
			}
		})
	}
}
