package power

import (
	"encoding/json"
	"errors"
	"net"
	"net/http"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"berth/internal/node"
	"berth/internal/site/api"
	"berth/internal/site/api/client"
	"berth/internal/spec/template"
	"berth/internal/sys/refuse"
)

// TestOtherRights: a node that the agent refuses to make of what is there goes first, once; another's node stays, and so does one that is refused for
// another reason.
func TestOtherRights(t *testing.T) {
	const post, remove = "POST /v1/templates/worker/nodes", "DELETE /v1/nodes/st01-01"
	otherRights, _ := errors.AsType[*refuse.Error](template.Refuse("st01-01", " was made with other rights"))
	busy, _ := errors.AsType[*refuse.Error](refuse.Busyf("its memory is in use"))
	for what, c := range map[string]struct {
		refused *refuse.Error
		own     bool
		asked   []string
	}{
		"a node of before": {otherRights, true, []string{post, remove, post}}, "another's node": {otherRights, false, []string{post, remove, post}},
		"a node that has to stay": {busy, true, []string{post}},
	} {
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
				case req.Method == http.MethodDelete && c.own:
					there = false
				case req.Method == http.MethodDelete:
					status, body = 404, api.Problem{Status: 404, Code: int(refuse.NotFound), Detail: "no node st01-01"}
				case there:
					status, body = 409, api.Problem{Status: 409, Code: int(c.refused.Kind), Detail: c.refused.What, Remedy: c.refused.Remedy}
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
			if made := c.own && len(c.asked) > 1; made && (err != nil || did != "created") || !made && refuse.KindOf(err) != refuse.Busy {
				t.Errorf("%q, %v", did, err)
			}
			if diff := cmp.Diff(c.asked, asked); diff != "" {
				t.Error(diff)
			}
		})
	}
}
