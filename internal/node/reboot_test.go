package node

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"berth/internal/sys/step"
	"berth/test/env"
	"berth/test/testkit"
)

// TestReboot: after a reboot ls shows a node as stopped, and start gives it the same MAC and ids. The reboot is played
// on a host whose /run is not a tmpfs: the node's processes and groups are gone, its files are there, from another boot.
func TestReboot(t *testing.T) {
	testkit.NeedsRoot(t)
	if testing.Short() {
		t.Skip("needs a longer run: it builds berth")
	}
	b := env.New(t, "/var/tmp")
	b.Apply(t, "name: n\nimage: host\ncommand: [/bin/sleep, infinity]\nnetwork: [{mode: bridge, address: [192.0.2.7/24]}]\n")
	identity := regexp.MustCompile(`(?m)^(ids|link).*$`)
	before := strings.Join(identity.FindAllString(b.OK(t, "show", "n"), -1), "\n")

	// Stop it, and put back what the files of a running node were, under another boot id.
	live := filepath.Join(b.Root, "run/nodes/n")
	saved := filepath.Join(b.Dir(), "saved")
	l := b.Layout()
	state, status := filepath.Join(l.RuntimeState(), "n"), l.Node("n").Status()
	for _, c := range [][2]string{{live, saved}, {state, saved + "-state"}, {status, saved + "-status"}} {
		if out, err := exec.Command("cp", "-a", c[0], c[1]).CombinedOutput(); err != nil {
			t.Fatalf("cp: %s", out)
		}
	}
	b.OK(t, "stop", "--grace", "0s", "n")
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
	if out := b.OK(t, "ls"); !strings.Contains(out, "stopped") {
		t.Errorf("after a reboot ls says\n%s", out)
	}
	b.OK(t, "start", "n")
	if after := strings.Join(identity.FindAllString(b.OK(t, "show", "n"), -1), "\n"); after != before {
		t.Errorf("before the reboot:\n%s\nafter:\n%s", before, after)
	}
}
