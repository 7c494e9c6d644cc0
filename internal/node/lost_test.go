package node

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"berth/internal/host"
	"berth/internal/network/link"
	"berth/internal/node/records"
	"berth/internal/spec/vnode"
	"berth/internal/storage/scratch"
	"berth/internal/sys/layout"
	"berth/internal/sys/refuse"
	"berth/internal/sys/step"
)

// afterPowerCut returns a Berth in a folder, on a host that is one too, whose boot is "now", and a function that writes files.
func afterPowerCut(t *testing.T) (b *Berth, write func(path, text string)) {
	t.Helper()
	root := t.TempDir()
	if err := errors.Join(os.Chmod(root, 0o755), os.Chmod(filepath.Dir(root), 0o755)); err != nil { // a root is passed through by nodes
		t.Fatal(err)
	}
	b = Open(layout.New(root), Beside{})
	b.Host = host.Host{Proc: t.TempDir(), Sys: t.TempDir()}
	b.Kinds = step.Join(link.Kinds(), scratch.Kinds())
	write = func(path, text string) {
		t.Helper()
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	write(filepath.Join(b.Host.Proc, "sys/kernel/random/boot_id"), "now\n")
	return b, write
}

// TestRecordsLostInAPowerCut: what repair does about a node some of whose records are empty, cut or gone.
func TestRecordsLostInAPowerCut(t *testing.T) {
	const head, creating, whole, up = `{"berth":3,"boot":"before","node":"n"}` + "\n", `{"phase":"creating"}` + "\n", `{"note":{"whole":true}}` + "\n", `{"phase":"up"}` + "\n"
	const has, none = "", "-" // of a file: it is empty; it is not there
	for name, tc := range map[string]struct {
		journal, spec, status string
		delta, throwaway      bool
		did, lost             string // what repair says, or why the journal is lost
		state                 string // as berth ls has it; "": no node
	}{
		"all are empty, as an older berth left them": {journal: has, spec: has, status: has, delta: true, lost: "is empty", state: "damaged"},
		"the journal is empty, there is no delta":    {journal: has, spec: "{}", status: has, lost: "is empty", state: "damaged"},
		"the journal is gone":                        {journal: none, spec: has, status: none, lost: "is gone", state: "damaged"},
		"the journal has zero bytes":                 {journal: "\x00\x00\x00\n\x00\n", spec: has, status: has, lost: "is empty", state: "damaged"},
		"the journal is cut":                         {journal: head + creating, spec: "{}", status: has, lost: "is cut off", state: "damaged"},
		"zero bytes behind what is whole":            {journal: head + creating + whole + up + "\x00\x00", spec: "{}", status: has, state: "stopped"},
		"only begun: an empty journal":               {journal: has, spec: none, status: none, did: "rolled back: its creation was interrupted"},
		"only begun: the spec was stored":            {journal: head + creating, spec: "{}", status: none, did: "rolled back: its creation was interrupted"},
		"whole, and never told":                      {journal: head + creating + whole, spec: "{}", status: none, did: "kept: its creation was interrupted when all of it was made", state: "stopped"},
		"the status is empty":                        {journal: head + creating + whole + up, spec: "{}", status: has, state: "stopped"},
		"the spec and the status are empty":          {journal: head + creating + whole + up, spec: has, status: has, state: "stopped"},
		"a throw-away node":                          {journal: has, spec: has, status: has, delta: true, throwaway: true, did: "rolled back: its creation was interrupted"},
	} {
		t.Run(name, func(t *testing.T) {
			b, write := afterPowerCut(t)
			dirs := b.Layout.Node("n")
			for path, text := range map[string]string{dirs.Claims(): tc.journal, dirs.Spec(): tc.spec, dirs.Status(): tc.status} {
				if text == "{}" {
					n := &vnode.Node{Name: "n", Image: vnode.Image{Kind: vnode.HostImage}}
					spec, err := json.Marshal(records.Stored{Applied: n, Now: n})
					if err != nil {
						t.Fatal(err)
					}
					text = string(spec)
				}
				if text != none {
					write(path, text)
				}
			}
			write(filepath.Join(dirs.Lib, "log"), "")
			if tc.delta {
				write(filepath.Join(dirs.Delta(), "upper", "kept"), "synced by a program")
			}
			if tc.throwaway {
				write(dirs.Throwaway(), "")
			}
			did, err := b.settleNode(t.Context(), "n")
			if did != tc.did || (err == nil) != (tc.lost == "") {
				t.Errorf("did %q, %v", did, err)
			}
			if _, kept := os.Stat(filepath.Join(dirs.Delta(), "upper", "kept")); tc.delta && !tc.throwaway && kept != nil {
				t.Error("what a program had synced is removed: ", kept)
			}
			if s := b.Status("n", "now"); s.State != tc.state {
				t.Errorf("it is %q, want %q", s.State, tc.state)
			}
			held := false
			if err := b.holdVolumes(t.Context(), "n", func(func(pool, volume string) bool) error { held = true; return nil }); err != nil || held != (tc.lost == "") {
				t.Errorf("its volumes may be looked at: %v, %v", held, err)
			}
			if tc.lost == "" {
				return
			}
			if r, ok := errors.AsType[*refuse.Error](err); !ok || !strings.Contains(r.What, dirs.Claims()) || !strings.Contains(r.What, tc.lost) || !strings.Contains(r.Remedy, dirs.Delta()) {
				t.Errorf("it says %v", err)
			}
			if err := b.Remove(t.Context(), "n", false); err == nil {
				t.Error("it is removed without --force")
			}
			if err := b.Remove(t.Context(), "n", true); err != nil {
				t.Error("rm --force: ", err)
			}
			if _, err := os.Stat(dirs.Lib); !os.IsNotExist(err) {
				t.Error("rm --force leaves it: ", err)
			}
		})
	}
}
