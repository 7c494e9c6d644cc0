package fault

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"berth/test/built"
	"berth/test/testkit"
)

// newer makes a berth of another version in the world's folder.
func (w *world) newer() string {
	w.Helper()
	path := filepath.Join(w.dir, "berth-"+built.NewerVersion)
	testkit.Must(w, built.Newer(w.Context(), path))
	return path
}

// by runs a command of another berth.
func (w *world) by(berth string, args ...string) result {
	w.Helper()
	j := w.beginBy(berth, nil, args...)
	return j.wait()
}

// program returns the path of a process's program.
func (w *world) program(pid int) string {
	w.Helper()
	path, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", pid))
	testkit.Must(w, err)
	return path
}

func (w *world) parent(pid int) (parent int) {
	w.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	testkit.Must(w, err)
	_, err = fmt.Sscanf(string(text[bytes.LastIndexByte(text, ')')+1:]), " %c %d", new(rune), &parent)
	testkit.Must(w, err)
	return parent
}

func (w *world) spec(name, more, command string) string {
	return w.file(name+".yaml", "name: "+name+"\nimage: host\n"+more+"command: [/bin/sh, -c, '"+command+"']\n")
}

// TestUpgrade starts nodes with one berth and talks to their keeper with a newer one. The keeper becomes the newer one: same
// process, same children, and nothing that it knew or waited for is lost.
func TestUpgrade(t *testing.T) {
	w := newWorld(t)
	newer := w.newer()
	const ends = `trap "exit 7" TERM; echo up; while :; do sleep 0.05; done`
	w.ok("apply", "-f", w.spec("ends", "", ends))
	w.ok("apply", "-f", w.spec("always", "restart: always\n", "exec sleep 100000"))
	w.ok("apply", "-f", w.spec("loops", "restart: on-failure\n", "exit 3"))
	w.ok("apply", "-f", w.spec("talks", "", `i=0; while [ $i -lt 20000 ]; do i=$((i+1)); echo "line $i"; done; exit 5`))
	run := w.begin(nil, "run", "--name", "guarded", "--image", "host", "--", "sleep", "100000")
	if !testkit.Happens(func() bool { return w.status("guarded").State == "running" && w.status("loops").Restarts > 2 }) {
		t.Fatalf("the nodes do not begin: %s", w.ok("ls").out)
	}
	keeper := w.keeperPid()
	if got := w.program(keeper); got != berth {
		t.Fatalf("the keeper runs %s, want %s", got, berth)
	}

	if r := w.by(newer, "logs", "ends"); r.code != 0 || r.out != "up\n" || r.err != "" {
		t.Fatalf("logs by the newer berth: exit %d: %s", r.code, r)
	}
	if now := w.keeperPid(); now != keeper || w.program(now) != newer {
		t.Fatalf("the keeper is process %d, %s; want process %d, %s", now, w.program(now), keeper, newer)
	}
	for _, node := range []string{"ends", "always"} {
		if p := w.parent(w.status(node).PID); p != keeper {
			t.Errorf("the parent of %s is %d, want the keeper", node, p)
		}
	}
	if r := w.ok("logs", "ends"); w.program(keeper) != newer {
		t.Errorf("an older berth took the keeper back: %s", r)
	}
	if r := w.berth("keeper", "--upgrade"); r.code != 3 || !strings.Contains(r.err, "does not become berth devel (protocol 1), which is older") {
		t.Errorf("an older berth upgrades the keeper: exit %d: %s", r.code, r)
	}

	// The events that the older program waited for.
	testkit.Must(w, unix.Kill(w.status("ends").PID, unix.SIGTERM))
	if !testkit.Happens(func() bool { return w.status("ends").Exit != nil }) {
		t.Fatal("ends does not end")
	}
	if e := w.status("ends").Exit; e == nil || e.Unknown || e.Code != 7 {
		t.Errorf("ends: exit %+v, want code 7", e)
	}
	first, times := w.status("always").PID, w.status("loops").Restarts
	testkit.Must(w, unix.Kill(first, unix.SIGKILL))
	if !testkit.Happens(func() bool { s := w.status("always"); return s.State == "running" && s.PID != first }) {
		t.Errorf("always is not started again: %+v", w.status("always"))
	}
	if !testkit.Happens(func() bool { return w.status("loops").Restarts > times }) {
		t.Errorf("loops is not started again: %+v", w.status("loops"))
	}
	if !testkit.Happens(func() bool { return w.status("talks").Exit != nil }) {
		t.Fatal("talks does not end")
	}
	if e := w.status("talks").Exit; e == nil || e.Unknown || e.Code != 5 {
		t.Errorf("talks: exit %+v, want code 5", e)
	}
	if got := w.ok("logs", "talks").out; strings.Count(got, "\n") != 20000 || !strings.HasSuffix(got, "line 20000\n") {
		t.Errorf("the log of talks has %d lines and ends with %q", strings.Count(got, "\n"), got[max(0, len(got)-30):])
	}
	run.kill()
	if !testkit.Happens(func() bool { return w.status("guarded").Name == "" }) {
		t.Errorf("the node of the killed berth run is not removed: %+v", w.status("guarded"))
	}
	if now := w.keeperPid(); now != keeper {
		t.Errorf("the keeper is process %d, want %d", now, keeper)
	}
	for _, node := range []string{"ends", "always", "loops", "talks"} {
		w.ok("rm", "--force", node)
	}
}

// TestUpgradeAtWork upgrades the keeper again and again while commands make nodes that end at once. Each command succeeds, each
// exit code is learned, and no descriptor stays.
func TestUpgradeAtWork(t *testing.T) {
	w := newWorld(t)
	w.ok("apply", "-f", w.spec("stays", "", "exec sleep 100000"))
	w.ok("keeper", "--upgrade")
	keeper := w.keeperPid()
	descriptors := func() int {
		all, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", keeper))
		testkit.Must(w, err)
		return len(all)
	}
	before := descriptors()
	for i := range 8 {
		name := fmt.Sprint("n", i)
		apply := w.begin(nil, "apply", "-f", w.spec(name, "", fmt.Sprint("exit ", 10+i)))
		time.Sleep(time.Duration(i) * 7 * time.Millisecond)
		upgrade := w.begin(nil, "keeper", "--upgrade")
		for _, j := range []*job{apply, upgrade} {
			if r := j.wait(); r.code != 0 {
				t.Errorf("berth %v: exit %d: %s", j.cmd.Args[3:], r.code, r)
			}
		}
		if !testkit.Happens(func() bool { return w.status(name).Exit != nil }) {
			t.Fatalf("the end of %s is not noted: %+v", name, w.status(name))
		}
		if e := w.status(name).Exit; e == nil || e.Unknown || e.Code != 10+i {
			t.Errorf("%s: exit %+v, want code %d", name, e, 10+i)
		}
		w.ok("rm", name)
	}
	if w.keeperPid() != keeper {
		t.Errorf("the keeper is process %d, want %d", w.keeperPid(), keeper)
	}
	if !testkit.Happens(func() bool { return descriptors() <= before }) {
		t.Errorf("the keeper has %d descriptors, %d before the upgrades", descriptors(), before)
	}
	w.ok("rm", "--force", "stays")
}

// TestUpgradeRefused checks that the keeper does not become a program that others than root can write, that it goes on as it
// was, and that a berth of another version still works with it where both speak the same protocol.
func TestUpgradeRefused(t *testing.T) {
	w := newWorld(t)
	newer := w.newer()
	testkit.Must(w, os.Chmod(newer, 0o775))
	w.ok("apply", "-f", w.spec("f1", "", "echo up; exec sleep 100000"))
	r := w.by(newer, "keeper", "--upgrade")
	if r.code != 3 || !strings.Contains(r.err, "no program that others than root can write: owner 0, mode 0775") {
		t.Errorf("upgrade: exit %d: %s", r.code, r)
	}
	if r := w.by(newer, "logs", "f1"); r.code != 0 || r.out != "up\n" {
		t.Errorf("logs by a berth of another version: exit %d: %s", r.code, r)
	}
	if got := w.program(w.keeperPid()); got != berth {
		t.Errorf("the keeper runs %s", got)
	}
	w.ok("rm", "--force", "f1")
}

// TestUnknownField says things to the keeper that it cannot know. It names them and does nothing.
func TestUnknownField(t *testing.T) {
	w := newWorld(t)
	w.ok("apply", "-f", w.spec("f1", "", "exec sleep 100000"))
	const mine = `"hello":{"protocol":1,"berth":"devel"},`
	for _, tc := range []struct{ say, want string }{
		{`{` + mine + `"do":"watch","node":"f1","colour":"red"}`, `field \"colour\"`},
		{`{"hello":{"protocol":2,"berth":"v9"},"accept":{"protocol":1,"berth":"devel"},"do":"watch","node":"f1","colour":"red"}`, "the former is newer"},
		{`{"hello":{"protocol":2,"berth":"v9"},"do":"watch","node":"f1","colour":"red"}`, `"differs":true`},
		{`{"do":"watch","node":"f1"}`, `"differs":true`},
		{`{` + mine + `"do":"dance"}`, `does not know \"dance\"`},
		{`{` + mine + `"do":5}`, "do at line 1"},
		{`{` + mine + `"do":`, `"differs":true`}, // what it cannot read has no version
	} {
		conn, err := net.DialUnix("unixpacket", nil, &net.UnixAddr{Name: w.l.KeeperSocket(), Net: "unixpacket"})
		testkit.Must(w, err)
		_, err = conn.Write([]byte(tc.say))
		testkit.Must(w, err)
		testkit.Must(w, conn.SetDeadline(time.Now().Add(testkit.Bound())))
		answer := make([]byte, 8192)
		n, err := conn.Read(answer)
		testkit.Must(w, err)
		conn.Close()
		if !strings.Contains(string(answer[:n]), tc.want) || !strings.HasPrefix(string(answer[:n]), `{"hello":{"protocol":1,"berth":"devel"}`) {
			t.Errorf("%s: answered %s, want %s in it", tc.say, answer[:n], tc.want)
		}
		if !json.Valid(answer[:n]) {
			t.Errorf("%s: answered %s", tc.say, answer[:n])
		}
	}
	w.ok("rm", "--force", "f1")
}
