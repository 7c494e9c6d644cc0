package fault

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"berth/test/testkit"
)

// alone is a world with the spec of one node, whose command each test chooses.
type alone struct {
	*world
	spec string
}

func (a *alone) apply(more, command string) {
	a.Helper()
	a.spec = a.file("alone.yaml", "name: f1\nimage: host\n"+more+"command: [/bin/sh, -c, '"+command+"']\n")
	a.ok("apply", "-f", a.spec)
}

// killKeeper kills the keeper and waits until it is gone.
func (a *alone) killKeeper() {
	a.Helper()
	pid := a.keeperPid()
	if pid == 0 {
		a.Fatal("no keeper runs")
	}
	a.killNow(pid)
}

// killNow kills a process and waits until all of its threads have ended.
func (a *alone) killNow(pid int) {
	a.Helper()
	fd, err := unix.PidfdOpen(pid, 0)
	testkit.Must(a, err)
	defer unix.Close(fd)
	testkit.Must(a, unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0))
	for {
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, int(testkit.Bound().Milliseconds()))
		if n == 1 {
			return
		}
		if !errors.Is(err, unix.EINTR) {
			a.Fatalf("process %d does not end: %v", pid, err)
		}
	}
}

// waits reports whether a process is in write(2) to its standard output.
func waits(pid int) bool {
	call, _ := os.ReadFile(fmt.Sprintf("/proc/%d/syscall", pid))
	return strings.HasPrefix(string(call), fmt.Sprintf("%d 0x1 ", unix.SYS_WRITE))
}

// TestLogWithoutKeeper kills the keeper, twice, while a node writes lines. The node goes on until its pipe is full and then
// waits. The next command starts another keeper, and no line is lost or duplicated, in logs -f and in logs afterwards.
func TestLogWithoutKeeper(t *testing.T) {
	a := alone{world: newWorld(t)}
	const lines = 20_000 // more than a pipe holds
	word := filepath.Join(a.dir, "word")
	testkit.Must(a, os.Mkdir(word, 0o755))
	say := func(what string) { a.Helper(); testkit.Must(a, os.WriteFile(filepath.Join(word, what), nil, 0o644)) }
	a.apply("mounts: [{source: "+word+", target: /word, read_only: true}]\n", fmt.Sprintf(`told() { while [ ! -e /word/$1 ]; do sleep 0.02; done; }; `+
		`i=0; for round in 1 2; do told $round; while [ $i -lt $((round * %d)) ]; do i=$((i+1)); echo "line $i"; done; done; told end; exit 7`, lines))
	for round := range 2 {
		a.killKeeper()
		pid := a.pidOf("f1")
		say(strconv.Itoa(round + 1))
		if !testkit.Happens(func() bool { return waits(pid) }) {
			t.Fatal("with no keeper, the node never waited for its pipe")
		}
		r := a.ok("ls")
		if !strings.Contains(r.err, "no keeper was there for 1 of the nodes: it was killed; it is started again") || strings.Count(r.err, "\n") != 1 {
			t.Errorf("ls said %q", r.err)
		}
		if !strings.Contains(r.out, "f1    running") {
			t.Errorf("ls: %s", r.out)
		}
	}
	following := a.begin(nil, "logs", "-f", "f1")
	say("end")
	followed := following.wait()
	if followed.err != "" {
		t.Errorf("logs said %q with a keeper there", followed.err)
	}
	var want strings.Builder
	for i := range 2 * lines {
		fmt.Fprintf(&want, "line %d\n", i+1)
	}
	if !testkit.Happens(func() bool { return a.status("f1").State == "exited" }) {
		t.Fatal("the node does not end")
	}
	for what, got := range map[string]string{"logs -f": followed.out, "logs afterwards": a.ok("logs", "f1").out} {
		if got != want.String() {
			t.Errorf("%s: %d bytes, want %d; the end is %q", what, len(got), want.Len(), got[max(0, len(got)-100):])
		}
	}
	// The node is the child of a keeper that was killed, so the last one knows the exit code only from the kernel.
	if e := a.status("f1").Exit; e == nil || e.Unknown == a.tells() || !e.Unknown && e.Code != 7 {
		t.Errorf("the kernel tells others than the parent how a process ended: %v; the exit is %+v", a.tells(), e)
	}
	a.ok("rm", "f1")
}

// pidOf returns the pid of the node's process 1 from its pid file. Unlike berth ls it does not start a keeper.
func (a *alone) pidOf(name string) (pid int) {
	a.Helper()
	text, err := os.ReadFile(a.l.Node(name).PIDFile())
	testkit.Must(a, err)
	_, err = fmt.Sscan(string(text), &pid)
	testkit.Must(a, err)
	return pid
}

// TestLastWords checks that the log has what a node wrote just before it ended, whether by itself or by stop.
func TestLastWords(t *testing.T) {
	a := alone{world: newWorld(t)}
	const words = "echo first; echo last words >&2; "
	for _, tc := range []struct {
		how, command string
		end          func()
	}{
		{"by itself", words + "exit 1", func() {}},
		{"by stop", `trap "echo last words; exit 1" TERM; echo first; while :; do sleep 0.1; done`, func() { a.ok("stop", "f1") }},
		{"by stop without a keeper", `trap "echo last words; exit 1" TERM; echo first; while :; do sleep 0.1; done`, func() {
			a.killKeeper()
			a.ok("stop", "f1")
		}},
	} {
		t.Run(tc.how, func(t *testing.T) {
			a.T = t
			defer func() { a.ok("rm", "--force", "f1") }()
			a.apply("", tc.command)
			if !testkit.Happens(func() bool { return strings.Contains(a.ok("logs", "f1").out, "first\n") }) {
				t.Fatal("the node does not begin")
			}
			tc.end()
			if !testkit.Happens(func() bool { return a.status("f1").State != "running" }) {
				t.Fatal("the node does not end")
			}
			if got := a.ok("logs", "f1").out; got != "first\nlast words\n" {
				t.Errorf("the log has %q", got)
			}
		})
	}
	a.T = t
}

// TestEndUnseen checks that the next command that reads the state reports the end of a node that ended while no keeper ran,
// with the two times between which it ended.
func TestEndUnseen(t *testing.T) {
	a := alone{world: newWorld(t)}
	for _, tc := range []struct {
		command []string
		says    string // the first words about the node
	}{
		{[]string{"ls"}, `(?m)^f1    exited `},
		{[]string{"show", "f1"}, `(?m)^state +exited `},
		{[]string{"top", "-n", "1", "--interval", "100ms"}, ``},
		{[]string{"logs", "f1"}, `^hello\n$`},
		{[]string{"ls", "--json"}, `"state": "exited"`},
	} {
		t.Run(tc.command[0], func(t *testing.T) {
			a.T = t
			defer func() { a.ok("rm", "--force", "f1") }()
			a.apply("", `echo hello; exec sleep 100000`)
			if !testkit.Happens(func() bool { return a.ok("logs", "f1").out == "hello\n" }) {
				t.Fatal("the node does not begin")
			}
			begin := time.Now()
			a.killKeeper()
			a.killNow(a.pidOf("f1"))
			r := a.ok(tc.command...)
			if want := "berth: no keeper was there for 1 of the nodes: it was killed; it is started again; ended meanwhile: 1\n"; r.err != want {
				t.Errorf("said %q, want %q", r.err, want)
			}
			if !regexp.MustCompile(tc.says).MatchString(r.out) {
				t.Errorf("printed %s", r.out)
			}
			if strings.Contains(r.out, "exited - ") {
				t.Errorf("it is not said how it ended: %s", r.out)
			}
			var all []struct {
				Started, Ended time.Time
				Exit           *struct {
					Unknown bool
					Code    int
					After   time.Time
				}
			}
			testkit.Must(a, json.Unmarshal([]byte(a.ok("ls", "--json").out), &all))
			s := all[0]
			switch {
			case s.Exit == nil:
				t.Fatal("the exit is not noted")
			case !s.Exit.Unknown && s.Exit.Code == 137:
				t.Log("the host has not reaped it yet: its exit code could be read")
			case !s.Exit.Unknown || s.Exit.After.Before(s.Started) || s.Exit.After.After(begin) || s.Ended.Before(begin):
				t.Errorf("%+v, exit %+v; it was killed after %v", s, *s.Exit, begin)
			default:
				between := regexp.MustCompile(`exited unknown, between [0-9: -]+ and [0-9: -]+`)
				if out := a.ok("ls").out; !between.MatchString(out) {
					t.Errorf("ls: %s", out)
				}
			}
		})
	}
	a.T = t
}

// TestRestartUnseen checks that the restart policy also applies to an end found late, and to a restart that was pending.
func TestRestartUnseen(t *testing.T) {
	for _, policy := range []string{"always", "on-failure"} {
		t.Run(policy, func(t *testing.T) {
			a := alone{world: newWorld(t)}
			a.apply("restart: "+policy+"\n", "exec sleep 100000")
			first := a.pidOf("f1")
			a.killKeeper()
			a.killNow(a.pidOf("f1"))
			a.ok("ls")
			if !testkit.Happens(func() bool { st := a.status("f1"); return st.State == "running" && st.PID != first }) {
				t.Errorf("it is not started again: %+v", a.status("f1"))
			}
			a.ok("rm", "--force", "f1")
		})
	}
	t.Run("due", func(t *testing.T) {
		a := alone{world: newWorld(t)}
		a.apply("restart: on-failure\n", "exit 1")
		loop := regexp.MustCompile(`(?m)^f1    exited 1, restarting, [5-9] times `)
		if !testkit.Happens(func() bool { return loop.MatchString(a.ok("ls").out) }) {
			t.Fatalf("no crash loop: %s", a.ok("ls").out)
		}
		a.killKeeper()
		before := a.ok("ls")
		if !strings.Contains(before.err, "no keeper was there for 1 of the nodes") {
			t.Errorf("ls said %q", before.err)
		}
		was := a.status("f1").Restarts
		if !testkit.Happens(func() bool { return a.status("f1").Restarts > was }) {
			t.Errorf("it is not started again: %+v", a.status("f1"))
		}
		a.ok("rm", "--force", "f1")
	})
}
