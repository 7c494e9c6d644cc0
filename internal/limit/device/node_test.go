package device

import (
	"bufio"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"berth/internal/storage/mounts"
	"berth/internal/sys/refuse"
	"berth/internal/sys/step"
	"berth/test/testkit"
)

// inside is a process with a mount namespace of its own, and perhaps a user namespace, whose /dev is a tmpfs.
type inside struct {
	t  *testing.T
	in mounts.Running
	w  io.Writer
	r  *bufio.Reader
}

const base = 1_234_500_000

func newInside(t *testing.T, userns bool) *inside {
	t.Helper()
	testkit.NeedsRoot(t)
	cmd := exec.Command("/bin/sh", "-c", `mount -t tmpfs -o mode=755 none /dev && echo ready; while read c; do eval "$c" 2>&1; echo; echo .; done`)
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNS} // it ends with its input
	n := &inside{t: t, in: mounts.Running{Stage: t.TempDir()}}
	if userns {
		cmd.SysProcAttr.Cloneflags |= syscall.CLONE_NEWUSER
		ids := []syscall.SysProcIDMap{{HostID: base, Size: 65536}}
		cmd.SysProcAttr.UidMappings, cmd.SysProcAttr.GidMappings = ids, ids
		cmd.SysProcAttr.Credential = &syscall.Credential{}
		n.in.Owner = base
	}
	w, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Skipf("no namespaces here: %v", err)
	}
	t.Cleanup(func() { w.Close(); _ = cmd.Wait() })
	n.w, n.r = w, bufio.NewReader(out)
	if line, _ := n.r.ReadString('\n'); line != "ready\n" {
		t.Skipf("no tmpfs in a namespace: %q", line)
	}
	stat, err := os.ReadFile("/proc/" + strconv.Itoa(cmd.Process.Pid) + "/stat")
	if err != nil {
		t.Fatal(err)
	}
	n.in.PID = cmd.Process.Pid
	n.in.Start, _ = strconv.ParseUint(strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')')+1:]))[19], 10, 64)
	return n
}

// sh runs a line of shell inside.
func (n *inside) sh(line string) string {
	n.t.Helper()
	if _, err := io.WriteString(n.w, line+"\n"); err != nil {
		n.t.Fatal(err)
	}
	var said strings.Builder
	for {
		l, err := n.r.ReadString('\n')
		if err != nil {
			n.t.Fatal(err)
		}
		if l == ".\n" {
			return strings.TrimSpace(said.String())
		}
		said.WriteString(l)
	}
}

// TestNode: a device appears, works, and vanishes without a trace, with and without a user namespace. Undo restores the old
// state, whatever a killed process left.
func TestNode(t *testing.T) {
	zero, full := &mounts.DeviceNode{Type: "c", Major: 1, Minor: 5}, &mounts.DeviceNode{Type: "c", Major: 1, Minor: 7}
	for name, userns := range map[string]bool{"user namespace": true, "none": false} {
		t.Run(name, func(t *testing.T) {
			n := newInside(t, userns)
			all := func() string { return strings.Join(strings.Fields(n.sh("find /dev -mindepth 1 | sort")), " ") }
			do := func(s step.Step) {
				t.Helper()
				if err := s.Do(t.Context()); err != nil {
					t.Fatal(err)
				}
				if err := s.Verify(t.Context()); err != nil {
					t.Fatal(err)
				}
			}
			put := &Node{In: n.in, Path: "/dev/disk/by-x/z", To: zero}
			do(put)
			do(put) // again, as after a kill
			if got := n.sh("head -c 3 /dev/disk/by-x/z | od -An -tx1; stat -c '%u %a %t:%T' /dev/disk/by-x/z"); got != "00 00 00\n0 660 1:5" {
				t.Errorf("inside: %q", got)
			}
			host, _ := os.ReadFile("/proc/self/mountinfo")
			if strings.Contains(string(host), n.in.Stage) {
				t.Errorf("the host sees it:\n%s", host)
			}
			change := &Node{In: n.in, Path: "/dev/disk/by-x/z", From: zero, To: full}
			do(change)
			if err := put.Verify(t.Context()); err == nil {
				t.Error("another device is taken for the first")
			}
			if err := put.Undo(t.Context()); err != nil || all() != "/dev/disk /dev/disk/by-x /dev/disk/by-x/z" {
				t.Errorf("undo took another's device away: %v, %s", err, all())
			}
			for range 2 {
				if err := change.Undo(t.Context()); err != nil {
					t.Fatal(err)
				}
			}
			if err := put.Verify(t.Context()); err != nil {
				t.Error(err)
			}
			for range 2 {
				if err := put.Undo(t.Context()); err != nil || all() != "" {
					t.Errorf("after undo: %v, %q", err, all())
				}
			}
			// A killed process left the file but no device on it; the node has entries of its own.
			n.sh(": > /dev/z; echo mine > /dev/mine; mkdir /dev/own; ln -s / /dev/out")
			place := &Node{In: n.in, Path: "/dev/z", To: zero}
			do(place)
			if err := place.Undo(t.Context()); err != nil {
				t.Fatal(err)
			}
			for _, path := range []string{"/dev/mine", "/dev/own", "/dev/out", "/dev/out/tmp/z", "/dev/mine/z"} {
				s := &Node{In: n.in, Path: path, To: zero}
				if err := s.Do(t.Context()); refuse.KindOf(err) != refuse.Busy {
					t.Errorf("%s: %v", path, err)
				}
				if err := s.Undo(t.Context()); err != nil {
					t.Errorf("undo %s: %v", path, err)
				}
			}
			if got := all(); got != "/dev/mine /dev/out /dev/own" {
				t.Errorf("at the end: %q", got)
			}
			for _, path := range []string{"/etc/z", "/dev/../z", "/dev/"} {
				if err := (&Node{In: n.in, Path: path, To: zero}).Do(t.Context()); err == nil {
					t.Errorf("%s was made", path)
				}
			}
		})
	}
}

// TestNodeEnded: a node that has ended, or a pid that another process has by now, is left alone.
func TestNodeEnded(t *testing.T) {
	n := newInside(t, false)
	zero := &mounts.DeviceNode{Type: "c", Major: 1, Minor: 5}
	n.in.Start++
	s := &Node{In: n.in, Path: "/dev/z", To: zero}
	if err := s.Do(t.Context()); err == nil || !strings.Contains(err.Error(), unix.ESRCH.Error()) {
		t.Errorf("another process's /dev was changed: %v", err)
	}
	if err := s.Undo(t.Context()); err != nil {
		t.Error(err)
	}
}

// TestUnused: an open device is found, with the process that has it open.
func TestUnused(t *testing.T) {
	group := t.TempDir() // like a cgroup: folders with cgroup.procs
	if err := os.Mkdir(group+"/inner", 0o755); err != nil {
		t.Fatal(err)
	}
	f, err := os.Open("/dev/full")
	if err != nil {
		t.Skipf("no /dev/full: %v", err)
	}
	defer f.Close()
	if err := os.WriteFile(filepath.Join(group, "inner/cgroup.procs"), []byte(strconv.Itoa(os.Getpid())+"\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	open := &Node{Path: "/dev/x", From: &mounts.DeviceNode{Type: "c", Major: 1, Minor: 7}, Group: group}
	if err := open.Unused(); refuse.KindOf(err) != refuse.Busy || !strings.Contains(err.Error(), strconv.Itoa(os.Getpid())) {
		t.Errorf("an open device: %v", err)
	}
	for _, d := range []mounts.DeviceNode{{Type: "b", Major: 1, Minor: 7}, {Type: "c", Major: 1, Minor: 11}} {
		open.From = &d
		if err := open.Unused(); err != nil {
			t.Errorf("%+v: %v", d, err)
		}
	}
}
