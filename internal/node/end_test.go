package node

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"berth/internal/host"
	"berth/internal/node/history"
	"berth/internal/node/keeper"
	"berth/internal/node/records"
	"berth/internal/spec/vnode"
	"berth/internal/sys/layout"
	"berth/internal/sys/proc"
	"berth/internal/sys/step"
	"berth/test/testkit"
)

// TestStatusIsACopy: without status.json the journals say the same.
func TestStatusIsACopy(t *testing.T) {
	b := Open(layout.New(t.TempDir()), Beside{})
	dirs := b.Layout.Node("n")
	if err := os.MkdirAll(dirs.Lib, 0o755); err != nil {
		t.Fatal(err)
	}
	boot, err := b.Host.BootID()
	testkit.Must(t, err)
	claims, err := step.Create(dirs.Claims(), "n", boot)
	testkit.Must(t, err)
	n := &vnode.Node{Name: "n", Restart: vnode.OnFailure}
	testkit.Must(t, b.Store("n", &records.Stored{Applied: n, Now: n}))
	testkit.Must(t, claims.SetPhase(step.Up))
	gone := proc.ID{PID: 1 << 22, Start: 1}
	testkit.Must(t, history.Begin(claims, &gone))
	testkit.Must(t, (&history.Fate{Claims: claims}).Note(history.End{State: Exited, Process: gone, Boot: boot, Exit: &history.Exit{Code: 3}, Restarts: 2}))
	if s := b.Status("n", boot); s.Name != "n" || s.State != Exited || s.Exit.Code != 3 || s.Restarts != 2 || s.Restarting {
		t.Errorf("%+v", s)
	}
	f, err := b.Fate("n")
	testkit.Must(t, err)
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
		last    *history.End
		state   string
		code    int
	}{
		"written":             {Status{State: Exited, Exit: &history.Exit{Code: 1}}, &history.End{State: Exited, Process: first, Exit: &history.Exit{Code: 1}}, Exited, 1},
		"not written":         {Status{State: Running, PID: first.PID, Start: first.Start}, &history.End{State: Stopped, Process: first, Exit: &history.Exit{Code: 9}}, Stopped, 9},
		"not noted yet":       {Status{State: Running, PID: second.PID, Start: second.Start}, &history.End{State: Stopped, Process: first, Exit: &history.Exit{Code: 9}}, Exited, 0},
		"neither was":         {Status{State: Exited, PID: first.PID, Start: first.Start}, &history.End{State: Exited, Process: second, Exit: &history.Exit{Code: 7}}, Exited, 7},
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
			err = (&history.Fate{Claims: claims}).Note(*tc.last)
		}
		if err != nil {
			t.Fatal(err)
		}
		tc.written.Name = "n"
		if tc.written.Boot == "" {
			tc.written.Boot = "boot"
		}
		b.Note(tc.written)
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

// TestListWaitsForTheEnd: a node whose process 1 has ended is listed with how it ended, also when nobody has noted that yet.
func TestListWaitsForTheEnd(t *testing.T) {
	testkit.NeedsRoot(t)
	b := Open(layout.New(t.TempDir()), Beside{})
	b.Kinds = step.Kinds{"test.first": func() step.Step { return &firstOnly{} }}
	dirs := b.Layout.Node("n")
	testkit.Must(t, os.MkdirAll(dirs.Lib, 0o755))
	testkit.Must(t, os.MkdirAll(dirs.Run, 0o755))
	testkit.Must(t, os.MkdirAll(filepath.Dir(b.Layout.Lock("n")), 0o755))
	boot, err := b.Host.BootID()
	testkit.Must(t, err)
	n := &vnode.Node{Name: "n", Image: vnode.Image{Kind: vnode.HostImage}}
	testkit.Must(t, b.Store("n", &records.Stored{Applied: n, Now: n}))
	gone := &firstOnly{Init: proc.ID{PID: 1 << 22, Start: 1}}
	for path, with := range map[string][]step.Step{dirs.Claims(): nil, dirs.Journal(): {gone}} {
		j, err := step.Create(path, "n", boot)
		testkit.Must(t, err)
		for _, s := range with {
			testkit.Must(t, j.Do(t.Context(), s))
		}
		testkit.Must(t, j.SetPhase(step.Up))
	}
	b.Note(Status{Name: "n", State: Running, PID: gone.Init.PID, Start: gone.Init.Start, Boot: boot})
	if s := b.Status("n", boot); s.State != Exited || !s.Ending || s.Exit != nil {
		t.Errorf("before it is noted: %+v", s)
	}
	all, err := b.List(t.Context())
	testkit.Must(t, err)
	if len(all) != 1 || all[0].State != Exited || all[0].Ending || all[0].Exit == nil || !all[0].Exit.Unknown {
		t.Errorf("listed: %+v", all)
	}
}

// ending is a node whose process 1 has ended, on a host that is a folder; noted changes its live journal before the keeper hears of the end.
func ending(t *testing.T, policy vnode.Restart, noted func(*step.Journal)) (*Berth, proc.ID) {
	t.Helper()
	b := Open(layout.New(t.TempDir()), Beside{})
	b.Host = host.Host{Proc: t.TempDir(), Sys: t.TempDir()}
	testkit.Must(t, os.MkdirAll(filepath.Join(b.Host.Proc, "sys/kernel/random"), 0o755))
	testkit.Must(t, os.WriteFile(filepath.Join(b.Host.Proc, "sys/kernel/random/boot_id"), []byte("now\n"), 0o600))
	first := proc.ID{PID: 1 << 22, Start: 1}
	b.Kinds = step.Kinds{"test.first": func() step.Step { return &firstOnly{} }}
	dirs := b.Layout.Node("n")
	for _, dir := range []string{dirs.Lib, dirs.Run, filepath.Dir(b.Layout.Lock("n"))} {
		testkit.Must(t, os.MkdirAll(dir, 0o755))
	}
	n := &vnode.Node{Name: "n", Image: vnode.Image{Kind: vnode.HostImage}, Restart: policy}
	testkit.Must(t, b.Store("n", &records.Stored{Applied: n, Now: n}))
	claims, err := step.Create(dirs.Claims(), "n", "now")
	testkit.Must(t, err)
	testkit.Must(t, claims.SetPhase(step.Up))
	live, err := step.Create(dirs.Journal(), "n", "now")
	testkit.Must(t, err)
	testkit.Must(t, live.Do(t.Context(), &firstOnly{Init: first}))
	testkit.Must(t, live.SetPhase(step.Up))
	noted(live)
	return b, first
}

// TestStopKilledIsNoReboot: some inits (sysvinit) boot again by the signal that asks them to end. If the stop that sent it is killed meanwhile, the
// keeper takes the end for that of a stop, and not for a reboot that was asked for inside.
func TestStopKilledIsNoReboot(t *testing.T) {
	again := keeper.Ending{Known: true, Status: unix.WaitStatus(unix.SIGHUP)}
	asked := func(in time.Duration) func(*step.Journal) {
		return func(j *step.Journal) { testkit.Must(t, history.SetAsked(j, time.Now().Add(in))) }
	}
	for name, c := range map[string]struct {
		noted func(*step.Journal)
		end   keeper.Ending
		state string
		again bool
	}{
		"asked inside":                  {func(*step.Journal) {}, again, Exited, true},
		"by a stop that was killed":     {asked(time.Minute), again, Stopped, false},
		"long after a stop was killed":  {asked(-time.Second), again, Exited, true},
		"its health check ended it":     {func(j *step.Journal) { asked(time.Minute)(j); testkit.Must(t, history.SetUnhealthy(j)) }, again, Exited, true},
		"another end after a stop":      {asked(time.Minute), keeper.Ending{Known: true, Status: unix.WaitStatus(3 << 8)}, Exited, false},
		"a power off after such a stop": {asked(time.Minute), keeper.Ending{Known: true, Status: unix.WaitStatus(unix.SIGINT)}, Exited, false},
	} {
		b, first := ending(t, vnode.Never, c.noted)
		in, err := (&kept{b}).Ended(t.Context(), "n", first.PID, c.end)
		testkit.Must(t, err)
		f, err := b.Fate("n")
		testkit.Must(t, err)
		if f.Last == nil || f.Last.State != c.state || in > 0 != c.again {
			t.Errorf("%s: %+v, started again in %s; want %s, again: %v", name, f.Last, in, c.state, c.again)
		}
		if _, err := b.Live("n"); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s: its live journal is still there: %v", name, err)
		}
	}
}
