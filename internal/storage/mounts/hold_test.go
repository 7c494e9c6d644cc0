package mounts

import (
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"berth/internal/sys/proc"
	"berth/internal/sys/refuse"
	"berth/test/testkit"
)

// TestHold: a mount that the host does not see gets into a running node, and goes.
func TestHold(t *testing.T) {
	testkit.NeedsRoot(t)
	top := t.TempDir()
	h := Hold{Dir: filepath.Join(top, "hold")}
	t.Cleanup(func() { _ = h.Drop() })
	if h.Made() || h.Mounted() || h.Unmount() != nil {
		t.Error("a hold is there before it was made")
	}
	err := h.Make(t.Context(), func(at string) error {
		if err := unix.Mount("held", at, "tmpfs", 0, "size=1m"); err != nil {
			return err
		}
		return os.WriteFile(at+"/file", []byte("data\n"), 0o644)
	})
	if err != nil {
		t.Fatal(err)
	}
	if !h.Made() || !h.Mounted() {
		t.Fatal("the hold is not there")
	}
	seen := func() string {
		text, err := os.ReadFile("/proc/self/mountinfo")
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	if strings.Contains(seen(), " held ") {
		t.Error("the host sees the mount")
	}
	if err := os.Mkdir(filepath.Join(top, "target"), 0o755); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("sleep", "infinity")
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNS | unix.CLONE_NEWUSER, UidMappings: []syscall.SysProcIDMap{{HostID: 0, Size: 1}}, GidMappings: []syscall.SysProcIDMap{{HostID: 0, Size: 1}}}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	id, err := proc.Of(cmd.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	node, target := Running{PID: id.PID, Start: id.Start}, filepath.Join(top, "target")
	if in, err := h.In(node, target); in || err != nil {
		t.Errorf("it is in the node before it was put there: %v", err)
	}
	if err := h.Put(node, target, true); err != nil {
		t.Fatal(err)
	}
	if in, err := h.In(node, target); !in || err != nil {
		t.Errorf("it is not in the node: %v", err)
	}
	out, err := exec.Command("nsenter", "--target", strconv.Itoa(id.PID), "--mount", "sh", "-c", "cat "+target+"/file; touch "+target+"/x; grep "+target+" /proc/self/mountinfo").CombinedOutput()
	for _, want := range []string{"data\n", "Read-only", "ro,nosuid,nodev"} {
		if !strings.Contains(string(out), want) {
			t.Errorf("in the node, want %q: %s %v", want, out, err)
		}
	}
	replaced(t, h, node, top)
	for range spares {
		if err := h.Force(); err != nil {
			t.Fatalf("give up its requests: %v", err)
		}
	}
	if err := h.Sync(); err != nil || !h.Mounted() {
		t.Errorf("it does not outlive the end of its requests: %v", err)
	}
	if err := h.Force(); err == nil {
		t.Error("requests are given up without end")
	}
	if err := h.Unmount(); err != nil || h.Mounted() {
		t.Errorf("unmount: %v", err)
	}
	for range 2 {
		if err := h.Drop(); err != nil {
			t.Error(err)
		}
	}
	if _, err := os.Lstat(h.Dir); err == nil || strings.Contains(seen(), top) {
		t.Errorf("left after it was dropped: %v\n%s", err, seen())
	}
}

// replaced: a mount is put where a link leads the first time alone. A link that the node makes later leads nowhere.
func replaced(t *testing.T, h Hold, node Running, top string) {
	t.Helper()
	real, link, other := filepath.Join(top, "real"), filepath.Join(top, "link"), filepath.Join(top, "other")
	for _, err := range []error{os.Mkdir(real, 0o755), os.Mkdir(other, 0o755), os.Symlink("real", link)} {
		if err != nil {
			t.Fatal(err)
		}
	}
	number, at, err := h.Replace(node, link, false, 0)
	if err != nil || at != real {
		t.Fatalf("put at %q: %v", at, err)
	}
	if _, again, err := h.Replace(node, at, false, number); err != nil || again != real {
		t.Errorf("put again at %q: %v", again, err)
	}
	if err := os.Rename(real, real+".old"); err != nil { // the host's namespace has no mount there
		t.Fatal(err)
	}
	if err := os.Symlink("other", real); err != nil {
		t.Fatal(err)
	}
	if _, _, err := h.Replace(node, at, false, number); refuse.KindOf(err) != refuse.Busy {
		t.Errorf("through a link that the node made: %v", err)
	}
	if in, err := h.In(node, other); in || err != nil {
		t.Errorf("the link led the mount to another folder: %v", err)
	}
}

// A mount that fails leaves nothing that Drop does not remove.
func TestHoldFails(t *testing.T) {
	testkit.NeedsRoot(t)
	h := Hold{Dir: filepath.Join(t.TempDir(), "hold")}
	if err := h.Make(t.Context(), func(string) error { return unix.ENOENT }); err != unix.ENOENT { //nolint:errorlint // as it was given
		t.Errorf("got %v", err)
	}
	if h.Made() {
		t.Error("a hold of nothing is there")
	}
	if err := h.Drop(); err != nil {
		t.Error(err)
	}
}
