package group

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"berth/internal/host"
	"berth/internal/host/group/grouptest"
	"berth/internal/sys/proc"
	"berth/internal/sys/refuse"
	"berth/test/testkit"
)

// freezers are the hierarchies of this host that can freeze, each alone: the v1 freezer, and the v2 tree.
func freezers(t *testing.T) map[string]host.Cgroups {
	h := grouptest.Host(t)
	all := map[string]host.Cgroups{}
	if mount := h.V1["freezer"]; mount != "" {
		all["v1"] = host.Cgroups{V1: map[string]string{"freezer": mount}}
	}
	if h.V2 != "" {
		all["v2"] = host.Cgroups{V2: h.V2}
	}
	if len(all) == 0 {
		t.Skip("no freezer is mounted")
	}
	return all
}

// frozenGroup makes a group with a process in a group inside it, frozen.
func frozenGroup(t *testing.T, h host.Cgroups) (path string, cmd *exec.Cmd) {
	t.Helper()
	path = grouptest.Parent(t, h)
	testkit.Must(t, Make(t.Context(), h, path))
	inner := path + "/inner"
	testkit.Must(t, Make(t.Context(), h, inner))
	t.Cleanup(func() { // the context of the test has ended by now
		_ = Kill(context.Background(), h, path)
		_ = Remove(context.Background(), h, path)
	})
	cmd = grouptest.Enter(t, h, inner, "trap 'exit 0' TERM; sleep 1000 & wait")
	testkit.Eventually(t, "the handler", func() bool { return proc.Handles(cmd.Process.Pid, unix.SIGTERM) })
	if Frozen(h, path) {
		t.Error("frozen before it was asked for")
	}
	testkit.Must(t, Freeze(t.Context(), h, path))
	testkit.Must(t, Freeze(t.Context(), h, path)) // again: nothing to do
	if !Frozen(h, path) {
		t.Error("not frozen")
	}
	return path, cmd
}

// TestKernelFreeze: a frozen process handles a signal when it is thawed. (Where it has no handler, the v2 freezer lets it end.)
func TestKernelFreeze(t *testing.T) {
	for name, h := range freezers(t) {
		t.Run(name, func(t *testing.T) {
			path, cmd := frozenGroup(t, h)
			pid := cmd.Process.Pid
			id, err := proc.Of(pid)
			testkit.Must(t, err)
			testkit.Must(t, unix.Kill(pid, unix.SIGTERM))
			if !id.Alive() {
				t.Error("a frozen process acted on a signal")
			}
			testkit.Must(t, Thaw(h, path))
			testkit.Must(t, Thaw(h, path))
			testkit.Eventually(t, "the end of the process", func() bool { return !id.Alive() })
			if Frozen(h, path) {
				t.Error("frozen after the thaw")
			}
		})
	}
}

// TestKernelKillFrozen: a frozen group can be killed and removed.
func TestKernelKillFrozen(t *testing.T) {
	for name, h := range freezers(t) {
		t.Run(name, func(t *testing.T) {
			path, cmd := frozenGroup(t, h)
			id, err := proc.Of(cmd.Process.Pid)
			testkit.Must(t, err)
			began := time.Now()
			testkit.Must(t, Kill(t.Context(), h, path))
			if id.Alive() {
				t.Error("it lives")
			}
			testkit.Must(t, Remove(t.Context(), h, path))
			t.Logf("killed and removed in %v", time.Since(began).Round(time.Millisecond))
		})
	}
}

// TestFreezeRefused: without a freezer it is refused with the remedy; a thaw has nothing to do.
func TestFreezeRefused(t *testing.T) {
	h := host.Cgroups{V2: t.TempDir()}
	err := Freeze(t.Context(), h, "berth/wn")
	if refuse.KindOf(err) != refuse.Cannot || !strings.Contains(err.Error(), "mount the v1 controller freezer") {
		t.Errorf("%v", err)
	}
	if err := Thaw(h, "berth/wn"); err != nil || Frozen(h, "berth/wn") {
		t.Errorf("thaw: %v", err)
	}
}

// TestFreezeTakesTooLong: a group that does not stop is let go on, and the error says where.
func TestFreezeTakesTooLong(t *testing.T) {
	h := host.Cgroups{V2: t.TempDir()}
	dir := filepath.Join(h.V2, "berth/wn")
	testkit.Must(t, os.MkdirAll(dir, 0o755))
	for name, text := range map[string]string{"cgroup.freeze": "0\n", "cgroup.events": "populated 1\nfrozen 0\n"} {
		testkit.Must(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	err := Freeze(ctx, h, "berth/wn")
	if !errors.Is(err, context.Canceled) || !strings.Contains(err.Error(), "stop all processes in "+dir) {
		t.Errorf("%v", err)
	}
	if state := grouptest.Text(t, filepath.Join(dir, "cgroup.freeze")); state != "0" {
		t.Errorf("afterwards cgroup.freeze is %q", state)
	}
}
