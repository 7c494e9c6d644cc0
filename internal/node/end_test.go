package node

import (
	"os"
	"testing"

	"berth/internal/fate"
	"berth/internal/layout"
	"berth/internal/proc"
	"berth/internal/step"
	"berth/internal/vnode"
)

// TestStatusIsACopy: without status.json the journals say the same.
func TestStatusIsACopy(t *testing.T) {
	b := Open(layout.New(t.TempDir()), Beside{})
	dirs := b.Layout.Node("n")
	if err := os.MkdirAll(dirs.Lib, 0o755); err != nil {
		t.Fatal(err)
	}
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	boot, err := b.host.BootID()
	must(err)
	claims, err := step.Create(dirs.Claims(), "n", boot)
	must(err)
	n := &vnode.Node{Name: "n", Restart: vnode.OnFailure}
	must(b.store("n", &Stored{Applied: n, Now: n}))
	must(claims.SetPhase(step.Up))
	gone := proc.ID{PID: 1 << 22, Start: 1}
	must(fate.Begin(claims, &gone))
	must((&fate.Fate{Claims: claims}).Note(fate.End{State: Exited, Process: gone, Boot: boot, Exit: &fate.Exit{Code: 3}, Restarts: 2}))
	if s := b.Status("n", boot); s.Name != "n" || s.State != Exited || s.Exit.Code != 3 || s.Restarts != 2 || s.Restarting {
		t.Errorf("%+v", s)
	}
	f, err := b.fate("n")
	must(err)
	if !f.Orphaned() {
		t.Error("its owner has ended")
	}
	if did, err := b.settleNode(t.Context(), "n"); err != nil || did != "removed: the berth run that it belonged to is gone" {
		t.Errorf("did %q, %v", did, err)
	}
	if _, err := os.Stat(dirs.Lib); err == nil {
		t.Error("it is still there")
	}
}

// TestStatusOlderThanEnd: what a full disk kept out of status.json is told from the journal.
func TestStatusOlderThanEnd(t *testing.T) {
	first, second := proc.ID{PID: 1 << 22, Start: 1}, proc.ID{PID: 1 << 22, Start: 2}
	for name, tc := range map[string]struct {
		written Status
		last    *fate.End
		state   string
		code    int
	}{
		"written":             {Status{State: Exited, Exit: &fate.Exit{Code: 1}}, &fate.End{State: Exited, Process: first, Exit: &fate.Exit{Code: 1}}, Exited, 1},
		"not written":         {Status{State: Running, PID: first.PID, Start: first.Start}, &fate.End{State: Stopped, Process: first, Exit: &fate.Exit{Code: 9}}, Stopped, 9},
		"not noted yet":       {Status{State: Running, PID: second.PID, Start: second.Start}, &fate.End{State: Stopped, Process: first, Exit: &fate.Exit{Code: 9}}, Exited, 0},
		"neither was":         {Status{State: Exited, PID: first.PID, Start: first.Start}, &fate.End{State: Exited, Process: second, Exit: &fate.Exit{Code: 7}}, Exited, 7},
		"ended for the 1st":   {Status{State: Running, PID: first.PID, Start: first.Start}, nil, Exited, 0},
		"stopped by a reboot": {Status{State: Running, PID: first.PID, Start: first.Start, Boot: "before"}, nil, Stopped, 0},
	} {
		b := Open(layout.New(t.TempDir()), Beside{})
		dirs := b.Layout.Node("n")
		if err := os.MkdirAll(dirs.Lib, 0o755); err != nil {
			t.Fatal(err)
		}
		claims, err := step.Create(dirs.Claims(), "n", "boot")
		if err == nil && tc.last != nil {
			err = (&fate.Fate{Claims: claims}).Note(*tc.last)
		}
		if err != nil {
			t.Fatal(err)
		}
		tc.written.Name = "n"
		if tc.written.Boot == "" {
			tc.written.Boot = "boot"
		}
		b.setStatus(tc.written)
		got := b.Status("n", "boot")
		code := 0
		if got.Exit != nil {
			code = got.Exit.Code
		}
		if got.State != tc.state || code != tc.code {
			t.Errorf("%s: %s, %d; want %s, %d", name, got.State, code, tc.state, tc.code)
		}
	}
}
