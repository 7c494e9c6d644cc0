package sitecli

import (
	"bytes"
	"encoding/json"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"berth/internal/site/api"
	"berth/internal/sys/layout"
	"berth/internal/sys/refuse"
)

// TestHost types the commands against a server that answers as an agent does.
func TestHost(t *testing.T) {
	root := t.TempDir()
	socket := layout.New(root).AgentSocket()
	if err := os.MkdirAll(filepath.Dir(socket), 0o755); err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	var asked []string
	mux := http.NewServeMux()
	answer := func(pattern string, status int, v any) {
		mux.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) {
			asked = append(asked, r.Method+" "+r.URL.Path)
			if status >= http.StatusBadRequest {
				w.Header().Set("Content-Type", api.ProblemType)
			}
			w.WriteHeader(status)
			_ = json.NewEncoder(w).Encode(v)
		})
	}
	answer("GET /v1/site/hosts", http.StatusOK, api.SiteHosts{Stale: "the cluster state is away since 10:00:00", Hosts: []api.Host{
		{Name: "a", Alive: true, Address: "a:7611", Version: "v1", Facts: &api.HostFacts{Nodes: 3, Running: 2, CPUs: 8, Memory: 8 << 30, Slots: 10, Free: 7}},
		{Name: "b", Drained: true},
	}})
	answer("POST /v1/site/hosts/b/drain", http.StatusOK, api.Done{Name: "b", Did: "drained"})
	answer("DELETE /v1/site/hosts/b", http.StatusConflict, api.Problem{Status: http.StatusConflict, Detail: "host b answers", Remedy: "berthd --leave", Code: int(refuse.Busy)})
	server := &http.Server{Handler: mux} //nolint:gosec // of a test
	go func() { _ = server.Serve(l) }()
	t.Cleanup(func() { _ = server.Close() })

	for _, c := range []struct {
		args     []string
		code     int
		out, err string
		ask      string
	}{
		{[]string{"host", "ls"}, 0, "HOST  STATE          NODES  RUNNING  FREE  CPUS  MEMORY   ADDRESS  VERSION\na     up             3      2        7     8     8.0 GiB  a:7611   v1\nb     away, drained  -      -        -     -     -        -        -\n", "the cluster state is away since 10:00:00\n", "GET /v1/site/hosts"},
		{[]string{"host", "drain", "b"}, 0, "b drained\n", "", "POST /v1/site/hosts/b/drain"},
		{[]string{"host", "forget", "b"}, 5, "", "berth: host b answers; berthd --leave\n", "DELETE /v1/site/hosts/b"},
	} {
		asked = nil
		var out, stderr bytes.Buffer
		code := Main(t.Context(), append([]string{"--root", root}, c.args...), Streams{In: os.Stdin, Out: &out, Err: &stderr})
		if d := cmp.Diff([]any{c.code, c.out, c.err, []string{c.ask}}, []any{code, out.String(), stderr.String(), asked}); d != "" {
			t.Errorf("berth %v (-want +got):\n%s", c.args, d)
		}
	}
}
