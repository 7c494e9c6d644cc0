package node

import (
	"encoding/json"
	"os"
	"strings"
	"testing"

	"berth/internal/limit/device"
	"berth/internal/node/records"
	"berth/internal/spec/vnode"
	"berth/internal/sys/layout"
	"berth/internal/sys/proc"
	"berth/internal/sys/step"
	"berth/test/testkit"
)

// TestReplugIsJournalled: what follows a disk that was unplugged is a live change in the journal, and a killed one is begun
// anew.
func TestReplugIsJournalled(t *testing.T) {
	b := Open(layout.New(t.TempDir()), Beside{})
	dirs := b.Layout.Node("n")
	testkit.Must(t, os.MkdirAll(dirs.Lib, 0o755))
	testkit.Must(t, os.MkdirAll(dirs.Run, 0o755))
	boot, err := b.Host.BootID()
	testkit.Must(t, err)
	self, err := proc.Self()
	testkit.Must(t, err)
	claims, err := step.Create(dirs.Claims(), "n", boot)
	testkit.Must(t, err)
	testkit.Must(t, claims.SetPhase(step.Up))
	live, err := step.Create(dirs.Journal(), "n", boot)
	testkit.Must(t, err)
	testkit.Must(t, live.SetPhase(step.Up))
	f, err := os.OpenFile(dirs.Journal(), os.O_APPEND|os.O_WRONLY, 0)
	testkit.Must(t, err)
	created, err := json.Marshal(map[string]any{"begin": 0, "kind": "oci.create", "step": map[string]any{"init": self}})
	testkit.Must(t, err)
	_, err = f.WriteString(string(created) + "\n" + `{"done":0}` + "\n")
	testkit.Must(t, err)
	testkit.Must(t, f.Close())
	n := &vnode.Node{Name: "n", Image: vnode.Image{Kind: vnode.HostImage}, IO: []vnode.IO{{Name: "data", Device: "/dev/gone"}}}
	testkit.Must(t, b.Store("n", &records.Stored{Applied: n, Now: n}))
	gone := device.Disk{Entry: "data", Major: 511, Minor: 1 << 19, ID: device.Identity{ID: "a disk that nobody has"}}
	testkit.Must(t, device.WriteTable(dirs.Devices(), device.Table{Disks: []device.Disk{gone}}))

	did, err := b.replugged(t.Context(), "n")
	if err != nil || did != "the disk of io.data is gone" {
		t.Fatalf("did %q, %v", did, err)
	}
	text, err := os.ReadFile(dirs.Journal())
	testkit.Must(t, err)
	_, after, begun := strings.Cut(string(text), `{"set":{"first":1,"spec":"replug"}}`)
	if !begun || !strings.Contains(after, `"kind":"device.record"`) || !strings.HasSuffix(after, "{\"set_end\":true}\n") {
		t.Errorf("the journal:\n%s", text)
	}
	j, err := b.Live("n")
	testkit.Must(t, err)
	testkit.Must(t, j.BeginSet(replugging))
	if did, err := b.settleSet(t.Context(), "n", j); err != nil || did != "" || j.Set != nil {
		t.Errorf("a killed one: %q, %v, %+v", did, err, j.Set)
	}
}
