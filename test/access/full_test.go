package access

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"berth/internal/site/api"
	"berth/internal/site/certs"
	"berth/internal/sys/refuse"
	"berth/test/testkit"
)

// TestFullAudit: an act whose line the disk does not take is not begun, and says why; reads go on, and so does root on the host itself. Once there is
// room, acts do.
func TestFullAudit(t *testing.T) {
	var fills string
	h := serve(t, func(h *host) {
		dir := filepath.Dir(h.audit)
		testkit.Must(t, os.Mkdir(dir, 0o700))
		testkit.Must(t, unix.Mount("tmpfs", dir, "tmpfs", 0, "size=64k"))
		t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
		fills = filepath.Join(dir, "fills")
	})
	if status, text := h.ask(t, "ann", "POST", template, asJSON, fill("first", `"cpus": 0.5`)); status != 200 {
		t.Fatalf("%d %s", status, text)
	}
	before := h.state(t)
	full, err := os.Create(fills)
	testkit.Must(t, err)
	defer full.Close()
	for err == nil {
		_, err = full.Write(make([]byte, 4096))
	}
	var request []byte
	_, err = certs.RenewOwn(filepath.Join(h.Dir(), "node2"), func(r []byte) ([]byte, error) { request = r; return nil, errors.New("not yet") })
	if request == nil {
		t.Fatal(err)
	}
	testkit.Must(t, os.Truncate(h.audit, 4096)) // the page that it has is full, too
	for _, r := range []struct{ who, method, path, kind, body string }{
		{"ann", "POST", template, asJSON, fill("second", `"cpus": 0.5`)},
		{"ann", "DELETE", "/v1/nodes/first?force=true", "", ""},
		{"root", "POST", "/v1/nodes/first/stop?grace=0", "", ""},
		{"root", "POST", "/v1/nodes", "application/yaml", "name: free\nimage: host\ncommand: [/bin/sleep, \"600\"]\n"},
		{"root", "PATCH", "/v1/nodes/first/limits", asJSON, `{"cpu.max": "0.2"}`},
		{"node2", "POST", "/v1/certificates/renew", "application/pkcs10", string(request)},
	} {
		status, text := h.ask(t, r.who, r.method, r.path, r.kind, r.body)
		var p api.Problem
		testkit.Must(t, json.Unmarshal([]byte(text), &p))
		if status != 507 || p.Code != int(refuse.Cannot) || !strings.Contains(p.Detail, unix.ENOSPC.Error()) || !strings.Contains(p.Detail, h.audit) ||
			!strings.Contains(p.Remedy, filepath.Dir(h.audit)) {
			t.Errorf("%s %s: %d %s", r.method, r.path, status, text)
		}
	}
	for _, who := range []string{"ann", "eve", "root"} {
		if status, text := h.ask(t, who, "GET", "/v1/nodes/first", "", ""); status != 200 {
			t.Errorf("%s does not see the node: %d %s", who, status, text)
		}
	}
	if after := h.state(t); len(after) != len(before) || after["first is"] != before["first is"] {
		t.Errorf("the nodes are %v, not %v", after, before)
	}
	_, err = h.nodes.Stop(t.Context(), "first", 0, "") // root on the host: no agent
	testkit.Must(t, err)

	testkit.Must(t, os.Remove(fills))
	testkit.Must(t, full.Close())
	if status, text := h.ask(t, "ann", "POST", "/v1/nodes/first/start", "", ""); status != 200 {
		t.Errorf("with room: %d %s", status, text)
	}
}
