package node

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"berth/internal/sys/layout"
	"berth/internal/sys/step"
	"berth/test/built"
)

// TestReboot: after a reboot ls shows a node as stopped, and start gives it the same MAC and ids. The reboot is played
// on a host whose /run is not a tmpfs: the node's processes and groups are gone, its files are there, from another boot.
func TestReboot(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	if testing.Short() {
		t.Skip("needs a longer run: it builds berth")
	}
	dir, err := os.MkdirTemp("/var/tmp", "berth-reboot-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o711); err != nil {
		t.Fatal(err)
	}
	berth, root := filepath.Join(dir, "berth"), filepath.Join(dir, "root")
	if err := built.Berth(t.Context(), berth); err != nil {
		t.Fatal(err)
	}
	run := func(args ...string) string {
		t.Helper()
		out, err := exec.Command(berth, append([]string{"--root", root}, args...)...).CombinedOutput()
		if err != nil {
			t.Fatalf("berth %s: %v: %s", strings.Join(args, " "), err, out)
		}
		return string(out)
	}
	spec := filepath.Join(dir, "n.yaml")
	text := "name: n\nimage: host\ncommand: [/bin/sleep, infinity]\nnetwork: [{mode: bridge, address: [192.0.2.7/24]}]\n"
	if err := os.WriteFile(spec, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	run("apply", "-f", spec)
	t.Cleanup(func() { run("rm", "--force", "n") })
	identity := regexp.MustCompile(`(?m)^(ids|link).*$`)
	before := strings.Join(identity.FindAllString(run("show", "n"), -1), "\n")

	// Stop it, and put back what the files of a running node were, under another boot id.
	live := filepath.Join(root, "run/nodes/n")
	saved := filepath.Join(dir, "saved")
	l := layout.New(root)
	state, status := filepath.Join(l.RuntimeState(), "n"), l.Node("n").Status()
	for _, c := range [][2]string{{live, saved}, {state, saved + "-state"}, {status, saved + "-status"}} {
		if out, err := exec.Command("cp", "-a", c[0], c[1]).CombinedOutput(); err != nil {
			t.Fatalf("cp: %s", out)
		}
	}
	run("stop", "--grace", "0s", "n")
	for _, c := range [][2]string{{live, saved}, {state, saved + "-state"}, {status, saved + "-status"}} {
		if out, err := exec.Command("cp", "-aT", c[1], c[0]).CombinedOutput(); err != nil {
			t.Fatalf("cp: %s", out)
		}
	}
	boot, err := step.BootID()
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range []string{filepath.Join(live, "journal"), status} {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		old := bytes.ReplaceAll(text, []byte(boot), []byte("00000000-0000-0000-0000-000000000000"))
		if bytes.Equal(text, old) {
			t.Fatalf("%s does not name its boot", file)
		}
		if err := os.WriteFile(file, old, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if out := run("ls"); !strings.Contains(out, "stopped") {
		t.Errorf("after a reboot ls says\n%s", out)
	}
	run("start", "n")
	if after := strings.Join(identity.FindAllString(run("show", "n"), -1), "\n"); after != before {
		t.Errorf("before the reboot:\n%s\nafter:\n%s", before, after)
	}
}
