package access

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"berth/internal/node"
	"berth/internal/sys/refuse"
	"berth/test/testkit"
)

// TestRemoveMade: a node that came in the place of the one that is to be removed is left alone.
func TestRemoveMade(t *testing.T) {
	h := serve(t)
	fillIn := func() {
		t.Helper()
		_, err := h.nodes.ApplyTemplate(t.Context(), operator("bob"), "job", "again", nil, 0)
		testkit.Must(t, err)
	}
	fillIn()
	first, err := h.nodes.Made("again")
	testkit.Must(t, err)
	testkit.Must(t, h.nodes.RemoveMade(t.Context(), "again", first))
	fillIn()
	if err := h.nodes.RemoveMade(t.Context(), "again", first); refuse.KindOf(err) != refuse.NotFound {
		t.Errorf("the next one of the name: %v", err)
	}
	second, err := h.nodes.Made("again")
	testkit.Must(t, err)
	if _, err := h.nodes.Node(t.Context(), "again", ""); err != nil || second.Equal(first) {
		t.Errorf("the next one, made at %s as the first at %s: %v", second, first, err)
	}
	testkit.Must(t, h.nodes.RemoveMade(t.Context(), "again", second))
}

// TestForce: an operator whose stop of a node waits for an hour does not keep an admin from ending it.
func TestForce(t *testing.T) {
	h := serve(t)
	ready := filepath.Join(h.Root, "ready")
	testkit.Must(t, os.Mkdir(ready, 0o777))
	testkit.Must(t, os.Chmod(ready, 0o777)) // whatever the umask
	testkit.Must(t, os.WriteFile(h.Layout().Etc("templates/stubborn.yaml"), []byte("node:\n  image: host\n  stop: {grace: 1h}\n  mounts: [{source: "+ready+", target: /srv}]\n"+
		"  command: [/bin/sh, -c, \"trap 'echo >/srv/asked' TERM; echo >/srv/begun; while :; do sleep 0.1; done\"]\n"), 0o644))
	await := func(name string) {
		t.Helper()
		testkit.Eventually(t, name, func() bool { _, err := os.Stat(filepath.Join(ready, name)); return err == nil })
		testkit.Must(t, os.Remove(filepath.Join(ready, name)))
	}
	for what, end := range map[string]func() error{
		"stop":   func() error { _, err := h.nodes.Stop(t.Context(), "job", 0, ""); return err },
		"kill":   func() error { _, err := h.nodes.Kill(t.Context(), "job", unix.SIGKILL); return err },
		"remove": func() error { return h.nodes.Remove(t.Context(), "job", true, "") },
	} {
		_, err := h.nodes.ApplyTemplate(t.Context(), operator("bob"), "stubborn", "job", nil, 0)
		testkit.Must(t, err)
		await("begun")
		stops := begin(func() error { _, err := h.nodes.Stop(t.Context(), "job", time.Hour, "bob"); return err })
		await("asked")
		if err := end(); err != nil {
			t.Errorf("%s: %v", what, err)
		}
		if err := <-stops; err != nil {
			t.Errorf("the stop beside %s: %v", what, err)
		}
	}
}

// TestGrace: an operator's stop holds a node, and who waits for it, as long as its spec says, or for five minutes, and no longer.
func TestGrace(t *testing.T) {
	h := serve(t)
	_, err := h.nodes.ApplyTemplate(t.Context(), operator("bob"), "job", "job", nil, 0)
	testkit.Must(t, err)
	before := h.state(t)
	for _, act := range []string{"stop", "restart"} {
		status, text := h.ask(t, "bob", "POST", "/v1/nodes/job/"+act+"?grace=301", "", "")
		if status != 400 || !strings.Contains(text, "5m0s") {
			t.Errorf("%s: %d %s", act, status, text)
		}
	}
	if diff := cmp.Diff(before, h.state(t)); diff != "" {
		t.Error(diff)
	}
	if status, text := h.ask(t, "bob", "POST", "/v1/nodes/job/stop?grace=300", "", ""); status != 200 { // it ends at once
		t.Errorf("%d %s", status, text)
	}
}

// TestHold: a node is made while its command is held, and the command begins when it may.
func TestHold(t *testing.T) {
	h := serve(t)
	began := time.Now()
	_, err := h.nodes.ApplyTemplate(t.Context(), operator("bob"), "job", "before", nil, 0)
	testkit.Must(t, err)
	hold := 2*time.Second + 5*time.Since(began) // a start of a node takes less, on this machine and under its load of now
	runs := func() string {
		pid, _ := os.ReadFile(h.Layout().Node("held").PIDFile())
		text, _ := os.ReadFile("/proc/" + strings.TrimSpace(string(pid)) + "/cmdline")
		return string(text)
	}
	began = time.Now()
	o := &node.Outcome{}
	ended := begin(func() (err error) {
		o, err = h.nodes.ApplyTemplate(t.Context(), operator("bob"), "job", "held", nil, hold)
		return err
	})
	for {
		is := runs()
		if time.Since(began) >= hold {
			break
		}
		if strings.HasPrefix(is, "/bin/sleep") {
			t.Fatalf("the command began %s after it was asked for", time.Since(began))
		}
		time.Sleep(5 * time.Millisecond)
	}
	testkit.Must(t, <-ended)
	if is := runs(); !strings.HasPrefix(is, "/bin/sleep") || o.Held == 0 {
		t.Errorf("held for %d ms; it runs %q", o.Held, is)
	}
	again, err := h.nodes.ApplyTemplate(t.Context(), operator("bob"), "job", "held", nil, hold)
	testkit.Must(t, err)
	if again.Held != 0 || again.Did != "unchanged" {
		t.Errorf("of a node that runs: %+v", again)
	}
}
