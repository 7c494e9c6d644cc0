// Package compat tests that this berth handles nodes that an older one made. From release to release, what a berth keeps on a
// host (journals, specs, images, the keeper's words) is understood by the next one.
package compat

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"berth/internal/image/imagetest"
	"berth/test/built"
	"berth/test/env"
	"berth/test/testkit"
)

// host is a folder with two programs and the nodes that both handle.
type host struct {
	dir string
	by  map[string]env.Berth // "old" and "new", with one root
}

// TestNodesOfAnOlderBerth starts nodes with the older berth, and lists, changes, enters, stops, starts, repairs and removes them
// with this one: first beside the older keeper, then with a keeper of its own.
func TestNodesOfAnOlderBerth(t *testing.T) {
	if testing.Short() {
		t.Skip("needs a longer run: it builds two programs")
	}
	testkit.NeedsRoot(t)
	h := newHost(t)
	h.make(t)
	t.Run("listed", h.listed)
	t.Run("changed", h.changed)
	t.Run("entered", h.entered)
	t.Run("stopped and started", h.stoppedAndStarted)
	t.Run("watched by a new keeper", h.watched)
	t.Run("repaired", h.repaired)
	t.Run("removed", h.removed)
}

func newHost(t *testing.T) *host {
	t.Helper()
	h := &host{dir: testkit.Dir(t, ""), by: map[string]env.Berth{}}
	for _, name := range []string{"old", "new"} {
		h.by[name] = env.Berth{Program: filepath.Join(h.dir, "bin-"+name, "berth"), Root: filepath.Join(h.dir, "root")}
		testkit.Must(t, os.Mkdir(h.by[name].Dir(), 0o755))
	}
	testkit.Must(t, built.Older(t.Context(), h.by["old"].Program), built.Berth(t.Context(), h.by["new"].Program))
	t.Cleanup(func() { // what a failed test left
		if log, _ := os.ReadFile(h.by["new"].Layout().KeeperLog()); len(log) > 0 {
			t.Logf("keeper.log:\n%s", log)
		}
		if err := h.by["new"].Clear(); err != nil {
			t.Error(err)
		}
	})
	return h
}

// ok runs one of the programs, which must succeed.
func (h *host) ok(t *testing.T, program string, args ...string) string {
	t.Helper()
	return h.by[program].OK(t, args...)
}

// spec writes a spec and returns its path.
func (h *host) spec(t *testing.T, name, rest string) string {
	t.Helper()
	path := filepath.Join(h.dir, name+".yaml")
	if err := os.WriteFile(path, []byte("name: "+name+"\n"+rest), 0o644); err != nil {
		t.Fatal(err)
	}
	return path
}

// The states in which the older berth leaves nodes.
const (
	limited = "limited" // with limits, a link, a mount and a restart policy
	folder  = "folder"  // from a folder
	image   = "image"   // from an imported image, in a class
	stopped = "stopped"
	exited  = "exited"
	half    = "half" // its apply was killed
	going   = "going"
)

// make lets the older berth make the nodes.
func (h *host) make(t *testing.T) {
	t.Helper()
	if err := os.Mkdir(filepath.Join(h.dir, "data"), 0o755); err != nil {
		t.Fatal(err)
	}
	const sleep = "image: host\ncommand: [/bin/sleep, infinity]\n"
	link := "network: [{mode: bridge, address: [10.9.8.%d/24], rate: {tx: 10Mbit/s}}]\n"
	h.ok(t, "old", "image", "import", imagetest.Busybox(t), "bb")
	for _, spec := range []string{
		h.spec(t, limited, "image: host\ncommand: [/bin/sh, -c, 'echo hello; exec sleep infinity']\ncpu: {max: 1.5}\nmemory: {max: 64MiB}\npids: 50\nrestart: always\n"+
			"mounts: [{source: "+h.dir+"/data, target: /data}]\n"+fmt.Sprintf(link, 1)),
		h.spec(t, folder, "image: dir:"+imagetest.BusyboxDir(t)+"\ncommand: [/bin/sleep, infinity]\ndelta: {in: memory, size: 16MiB}\n"),
		h.spec(t, image, "image: oci:bb\ncommand: [/bin/sleep, infinity]\nclass: batch\n"+fmt.Sprintf(link, 2)),
		h.spec(t, stopped, sleep+fmt.Sprintf(link, 3)),
		h.spec(t, exited, "image: host\ncommand: [/bin/sh, -c, 'exit 3']\n"),
		h.spec(t, going, sleep+fmt.Sprintf(link, 4)),
	} {
		h.ok(t, "old", "apply", "-f", spec)
	}
	h.ok(t, "old", "stop", "--grace", "0s", stopped)
	h.killed(t, "apply", "-f", h.spec(t, half, sleep+fmt.Sprintf(link, 5)))
	h.killed(t, "rm", "--force", going)
}

// killed lets the older berth run a command until it kills itself at a fault point in the middle of its work.
func (h *host) killed(t *testing.T, args ...string) {
	t.Helper()
	old := h.by["old"]
	old.Env = []string{"BERTH_FAULT=20"}
	if out, errs, code := old.Try(args...); code != -1 {
		t.Fatalf("the old berth %v was not killed: exit %d: %s%s", args, code, out, errs)
	}
}

// listedNode is the part of berth ls --json that the test looks at.
type listedNode struct {
	Name, State string
	PID         int
	Exit        *struct{ Code int }
}

func (h *host) list(t *testing.T) (all []listedNode) {
	t.Helper()
	if err := json.Unmarshal([]byte(h.ok(t, "new", "ls", "--json")), &all); err != nil {
		t.Fatal(err)
	}
	return all
}

// node returns a node's entry, the zero value if there is none.
func (h *host) node(t *testing.T, name string) listedNode {
	t.Helper()
	all := h.list(t)
	if i := slices.IndexFunc(all, func(n listedNode) bool { return n.Name == name }); i >= 0 {
		return all[i]
	}
	return listedNode{}
}

// wait waits until a node satisfies is.
func (h *host) wait(t *testing.T, name string, is func(listedNode) bool) {
	t.Helper()
	var now listedNode
	if !testkit.Happens(func() bool {
		now = h.node(t, name)
		return is(now)
	}) {
		t.Fatalf("after %v it is %+v", testkit.Bound(), now)
	}
}

func (h *host) listed(t *testing.T) {
	h.wait(t, exited, func(n listedNode) bool { return n.State == "exited" && n.Exit != nil && n.Exit.Code == 3 })
	for name, want := range map[string]string{limited: "running", folder: "running", image: "running", stopped: "stopped"} {
		if got := h.node(t, name); got.State != want {
			t.Errorf("%s is %+v, want %s", name, got, want)
		}
		h.ok(t, "new", "show", name)
		h.ok(t, "new", "show", "--spec", name)
	}
	h.holds(t, map[string]string{"cpu.max": "1.5", "memory.max": "64MiB", "pids": "50", "net.eth0.tx": "10Mbit/s"})
	if got := h.ok(t, "new", "logs", limited); got != "hello\n" {
		t.Errorf("the log has %q", got)
	}
	if got := h.ok(t, "new", "image", "ls"); !strings.Contains(got, "bb") {
		t.Errorf("the images are\n%s", got)
	}
}

// holds checks the limits of node limited: what was asked for, and that the kernel has it.
func (h *host) holds(t *testing.T, want map[string]string) {
	t.Helper()
	var shown struct {
		Limits []struct {
			Key, Asked string
			Holds      bool
		}
	}
	if err := json.Unmarshal([]byte(h.ok(t, "new", "show", "--json", limited)), &shown); err != nil {
		t.Fatal(err)
	}
	found := 0
	for _, l := range shown.Limits {
		if want[l.Key] == "" {
			continue
		}
		found++
		if l.Asked != want[l.Key] || !l.Holds {
			t.Errorf("limit %+v, want %s", l, want[l.Key])
		}
	}
	if found != len(want) {
		t.Errorf("the limits are %+v, want %v", shown.Limits, want)
	}
}

func (h *host) changed(t *testing.T) {
	h.ok(t, "new", "set", limited, "pids=40", "memory.max=48MiB", "cpu.max=max", "net.eth0.tx=5Mbit/s")
	h.holds(t, map[string]string{"memory.max": "48MiB", "pids": "40", "net.eth0.tx": "5Mbit/s"})
}

func (h *host) entered(t *testing.T) {
	for name, want := range map[string]string{limited: "sleep\n", folder: "sleep\n", image: "sleep\n"} {
		if got := h.ok(t, "new", "exec", name, "--", "cat", "/proc/1/comm"); got != want {
			t.Errorf("process 1 of %s is %q", name, got)
		}
	}
}

func (h *host) stoppedAndStarted(t *testing.T) {
	for _, name := range []string{folder, image} {
		h.ok(t, "new", "stop", "--grace", "0s", name)
		if got := h.node(t, name); got.State != "stopped" {
			t.Errorf("%s is %+v after stop", name, got)
		}
	}
	for _, name := range []string{folder, image, stopped} {
		h.ok(t, "new", "start", name)
		if got := h.node(t, name); got.State != "running" {
			t.Errorf("%s is %+v after start", name, got)
		}
	}
	h.ok(t, "new", "apply", "--restart", "-f", h.spec(t, stopped, "image: host\ncommand: [/bin/sleep, infinity]\nhostname: other\n"))
	if got := h.ok(t, "new", "exec", stopped, "--", "cat", "/proc/sys/kernel/hostname"); got != "other\n" {
		t.Errorf("its host name is %q", got)
	}
}

// watched kills the older keeper. The next command starts a keeper of this version, which applies restart policies.
func (h *host) watched(t *testing.T) {
	for pid := range h.keepers() {
		if err := unix.Kill(pid, unix.SIGKILL); err != nil {
			t.Fatal(err)
		}
	}
	before := h.node(t, limited)
	if before.State != "running" {
		t.Fatalf("with a new keeper it is %+v", before)
	}
	if err := unix.Kill(before.PID, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	h.wait(t, limited, func(n listedNode) bool { return n.State == "running" && n.PID != before.PID })
	h.holds(t, map[string]string{"memory.max": "48MiB", "pids": "40", "net.eth0.tx": "5Mbit/s"})
}

// keepers returns the keepers of this root, by process id.
func (h *host) keepers() map[int]string {
	return testkit.Processes("\x00"+h.by["new"].Root+"\x00", "\x00keeper\x00")
}

func (h *host) repaired(t *testing.T) {
	h.ok(t, "new", "repair")
	for _, name := range []string{half, going} {
		if got := h.node(t, name); got.Name != "" {
			t.Errorf("%s is still there: %+v", name, got)
		}
	}
	if got := h.ok(t, "new", "repair"); got != "nothing to repair\n" {
		t.Errorf("the second repair says %q", got)
	}
}

func (h *host) removed(t *testing.T) {
	h.ok(t, "new", "rm", "--force", limited, folder, image, stopped, exited)
	h.ok(t, "new", "image", "rm", "bb")
	if left := append(h.by["new"].Left(), h.by["new"].Groups()...); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
}
