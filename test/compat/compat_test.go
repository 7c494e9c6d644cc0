// Package compat tests that this berth handles nodes that an older one made. From release to release, what a berth keeps on a
// host (journals, specs, images, the keeper's words) is understood by the next one.
package compat

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"berth/internal/image/imagetest"
	"berth/internal/sys/layout"
	"berth/test/built"
	"berth/test/testkit"
)

// host is a folder with two programs and the nodes that both handle.
type host struct {
	dir, root string
	l         layout.Layout
	programs  map[string]string
}

// TestNodesOfAnOlderBerth starts nodes with the older berth, and lists, changes, enters, stops, starts, repairs and removes them
// with this one: first beside the older keeper, then with a keeper of its own.
func TestNodesOfAnOlderBerth(t *testing.T) {
	if testing.Short() {
		t.Skip("needs a longer run: it builds two programs")
	}
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
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
	dir, err := os.MkdirTemp("", "berth-compat-")
	if err != nil {
		t.Fatal(err)
	}
	h := &host{dir: dir, root: filepath.Join(dir, "root"), programs: map[string]string{}}
	h.l = layout.New(h.root)
	t.Cleanup(func() { os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"old", "new"} {
		h.programs[name] = filepath.Join(dir, "bin-"+name, "berth")
		if err := os.Mkdir(filepath.Dir(h.programs[name]), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(built.Older(t.Context(), h.programs["old"]), built.Berth(t.Context(), h.programs["new"])); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { // what a failed test left
		if log, _ := os.ReadFile(h.l.KeeperLog()); len(log) > 0 {
			t.Logf("keeper.log:\n%s", log)
		}
		for _, n := range h.list(t) {
			h.run(nil, "new", "rm", "--force", n.Name)
		}
	})
	return h
}

// run runs one of the programs.
func (h *host) run(env []string, program string, args ...string) (stdout, stderr string, code int) {
	cmd := exec.Command(h.programs[program], append([]string{"--root", h.root}, args...)...)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr, cmd.Env = &out, &errs, append(os.Environ(), env...)
	cmd.WaitDelay = testkit.Bound()
	_ = cmd.Run() // the exit code tells
	return out.String(), errs.String(), cmd.ProcessState.ExitCode()
}

// ok runs one of the programs, which must succeed.
func (h *host) ok(t *testing.T, program string, args ...string) string {
	t.Helper()
	stdout, stderr, code := h.run(nil, program, args...)
	if code != 0 {
		t.Fatalf("the %s berth %s: exit %d: %s%s", program, strings.Join(args, " "), code, stdout, stderr)
	}
	return stdout
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
	if out, errs, code := h.run([]string{"BERTH_FAULT=20"}, "old", args...); code != -1 {
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
	for _, pid := range h.keepers(t) {
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

// keepers returns the keepers of this root.
func (h *host) keepers(t *testing.T) (pids []int) {
	t.Helper()
	all, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range all {
		text, _ := os.ReadFile(file)
		if words := strings.Split(string(text), "\x00"); slices.Contains(words, h.root) && slices.Contains(words, "keeper") {
			var pid int
			if _, err := fmt.Sscanf(file, "/proc/%d/", &pid); err != nil {
				t.Fatal(err)
			}
			pids = append(pids, pid)
		}
	}
	return pids
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
	testkit.Eventually(t, "the end of the keeper", func() bool { return len(h.keepers(t)) == 0 })
	for _, dir := range []string{h.l.LibNodes(), h.l.RunNodes()} {
		if left, _ := os.ReadDir(dir); len(left) > 0 {
			t.Errorf("left in %s: %v", dir, left)
		}
	}
	groups, err := filepath.Glob("/sys/fs/cgroup/*/" + h.l.CgroupParent() + "*")
	if left, err2 := filepath.Glob("/sys/fs/cgroup/" + h.l.CgroupParent() + "*"); err != nil || err2 != nil || len(groups)+len(left) > 0 {
		t.Errorf("left: %v %v, %v, %v", groups, left, err, err2)
	}
}
