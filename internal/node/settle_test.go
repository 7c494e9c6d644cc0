package node

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"berth/internal/host"
	"berth/internal/node/records"
	"berth/internal/runner"
	"berth/internal/spec/vnode"
	"berth/internal/sys/layout"
	"berth/internal/sys/proc"
	"berth/internal/sys/step"
)

// firstOnly is a step that made a process and has nothing to undo.
type firstOnly struct {
	runner.Holder `json:"-"`
	Init          proc.ID `json:"init"`
}

func (f *firstOnly) Kind() string                 { return "test.first" }
func (f *firstOnly) String() string               { return "a first process" }
func (f *firstOnly) First() proc.ID               { return f.Init }
func (f *firstOnly) Layers() []string             { return nil }
func (f *firstOnly) Runner() string               { return "test" }
func (f *firstOnly) StopSignal() unix.Signal      { return unix.SIGTERM }
func (f *firstOnly) Do(context.Context) error     { return nil }
func (f *firstOnly) Verify(context.Context) error { return nil }
func (f *firstOnly) Undo(context.Context) error   { return nil }

// TestSettles: what repair does about the journals that a killed command can leave. The journals are written here as text,
// on a host that is a folder.
func TestSettles(t *testing.T) {
	self, err := proc.Self()
	if err != nil {
		t.Fatal(err)
	}
	first := func(pid int, start uint64) string {
		return fmt.Sprintf(`{"begin":0,"kind":"test.first","step":{"init":{"pid":%d,"start":%d}}}{"done":0}`, pid, start)
	}
	alive, ended := first(self.PID, self.Start), first(1<<22, 1)
	const up, creating, removing = `{"phase":"up"}`, `{"phase":"creating"}`, `{"phase":"removing"}`
	const inClaims, inLive, both, none = "claims", "live", "claims live", ""
	for name, tc := range map[string]struct {
		claims, live, boot string // records, without the first one; "-" is a folder without a journal
		did, left          string // left: which of the two folders is still there
	}{
		"nothing is there":                          {did: "", left: none},
		"it is stopped":                             {claims: up, left: inClaims},
		"killed before the first record":            {claims: "-", did: "removed an empty folder", left: none},
		"killed while it was created":               {claims: creating, did: "rolled back: its creation was interrupted", left: none},
		"killed while it was removed":               {claims: removing, did: "removed: its removal was interrupted", left: none},
		"killed before the first record of a start": {claims: up, live: "-", did: "removed an empty live folder", left: inClaims},
		"killed while it was started":               {claims: up, live: creating, did: "rolled back: its start was interrupted", left: inClaims},
		"killed while it was stopped":               {claims: up, live: up + removing, did: "stopped: its stop was interrupted", left: inClaims},
		"it runs":                                   {claims: up, live: alive + up, left: both},
		"its process 1 has ended":                   {claims: up, live: ended + up, did: "cleaned up: its process 1 had ended", left: inClaims},
		"no process 1 was made":                     {claims: up, live: up, did: "cleaned up: its process 1 had ended", left: inClaims},
		"the host was booted":                       {claims: up, live: alive + up, boot: "before", did: "stopped by a reboot", left: inClaims},
		"booted while it was started":               {claims: up, live: creating, boot: "before", did: "stopped by a reboot", left: inClaims},
		"set was killed, nothing is stored":         {claims: up, live: alive + up + `{"set":{"first":1,"spec":"another"}}`, did: "set was interrupted: the old values are in force", left: both},
		"a replug was killed":                       {claims: up, live: alive + up + `{"set":{"first":1,"spec":"replug"}}`, left: both},
		"the berth run of a running node is gone":   {claims: up + `{"note":{"owner":{"pid":4194304,"start":1}}}`, live: ended + up, did: "removed: the berth run that it belonged to is gone", left: none},
		"its berth run is there":                    {claims: up + fmt.Sprintf(`{"note":{"owner":{"pid":%d,"start":%d}}}`, self.PID, self.Start), live: alive + up, left: both},
		"created and started in one, killed":        {claims: creating, live: creating, did: "rolled back: its creation was interrupted", left: none},
	} {
		t.Run(name, func(t *testing.T) {
			b := Open(layout.New(t.TempDir()), Beside{})
			b.Host = host.Host{Proc: t.TempDir(), Sys: t.TempDir()}
			write := func(path, text string) {
				t.Helper()
				if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			write(filepath.Join(b.Host.Proc, "sys/kernel/random/boot_id"), "now\n")
			b.Kinds = step.Kinds{"test.first": func() step.Step { return &firstOnly{} }}
			dirs := b.Layout.Node("n")
			for path, records := range map[string]string{dirs.Claims(): tc.claims, dirs.Journal(): tc.live} {
				switch records {
				case "":
				case "-":
					write(filepath.Join(filepath.Dir(path), "status.json.new"), "")
				default:
					boot := tc.boot
					if boot == "" {
						boot = "now"
					}
					write(path, fmt.Sprintf(`{"berth":3,"boot":%q,"node":"n"}`, boot)+"\n"+strings.ReplaceAll(records, "}{", "}\n{")+"\n")
				}
			}
			n := &vnode.Node{Name: "n", Image: vnode.Image{Kind: vnode.HostImage}}
			if strings.HasPrefix(tc.claims, up) {
				if err := b.Store("n", &records.Stored{Applied: n, Now: n}); err != nil {
					t.Fatal(err)
				}
			}
			did, err := b.settleNode(t.Context(), "n")
			if did != tc.did || err != nil {
				t.Errorf("did %q, want %q; %v", did, tc.did, err)
			}
			var left []string
			for _, folder := range [][2]string{{dirs.Lib, inClaims}, {dirs.Run, inLive}} {
				if _, err := os.Stat(folder[0]); err == nil {
					left = append(left, folder[1])
				}
			}
			if got := strings.Join(left, " "); got != tc.left {
				t.Errorf("left: %q, want %q", got, tc.left)
			}
			if again, err := b.settleNode(t.Context(), "n"); again != "" || err != nil {
				t.Errorf("a second time: %q, %v", again, err)
			}
		})
	}
}
