// Package runnertest is the conformance suite of runners: it tests what package runner promises to callers.
package runnertest

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"berth/internal/host/group"
	"berth/internal/runner"
	"berth/internal/sys/step"
	"berth/test/testkit"
)

// Suite is a runner to test, with the parts of which its nodes are made.
type Suite struct {
	Family runner.Family
	Runner runner.Runner
	// Spec describes a node that runs a script with /bin/sh. Its files are in the folder dir. The suite sets Groups, Dir,
	// State, PIDFile and Log.
	Spec func(t *testing.T, dir, script string) runner.Spec
	// Apart: the node has a kernel of its own, so its commands are no processes of this host. What the suite then cannot see of
	// them is their groups; those of the first process it checks all the same.
	Apart bool
}

// Run runs the suite. It starts the test program again, for processes that it kills: so t must be the same test there, and
// must do nothing that lasts before it calls Run.
func (s Suite) Run(t *testing.T) {
	testkit.NeedsRoot(t)
	if text := os.Getenv(jobVariable); text != "" {
		s.work(t, text)
		return
	}
	for name, test := range map[string]func(*testing.T, Suite){
		"waits": waits, "journal": fromJournal, "others": spared, "refused": refused, "no command": noCommand,
		"groups": inGroups, "signals": signals, "exit codes": exitCodes, "exec": execs, "timeout": timeouts, "kills": kills,
	} {
		t.Run(name, func(t *testing.T) { test(t, s) })
	}
}

// waits: create makes a process that has not begun, and start lets it run.
func waits(t *testing.T, s Suite) {
	b := s.bed(t, "echo begun; sleep 1000")
	b.do(t, b.steps.Create)
	first := b.holder(t).First()
	if text, err := os.ReadFile(b.spec.PIDFile); err != nil || strings.TrimSpace(string(text)) != fmt.Sprint(first.PID) {
		t.Errorf("the pid file says %q %v, the step %d", text, err, first.PID)
	}
	time.Sleep(200 * time.Millisecond)
	if said := b.said(t); said != "" || !first.Alive() {
		t.Errorf("before start the process said %q; alive: %v", said, first.Alive())
	}
	b.do(t, b.steps.Start)
	b.await(t, "begun\n")
	if !first.Alive() || b.holder(t).First() != first {
		t.Errorf("after start the first process is %v, was %v; alive: %v", b.holder(t).First(), first, first.Alive())
	}
}

// fromJournal checks that the journal alone is enough to know the first process and its stop signal, and to undo everything.
func fromJournal(t *testing.T, s Suite) {
	b := s.bed(t, "sleep 1000 & wait")
	b.spec.Stop = unix.SIGUSR2
	b.plan(t)
	b.up(t)
	was := b.holder(t)
	b.reopen(t)
	now := b.holder(t)
	if now.First() != was.First() || now.StopSignal() != unix.SIGUSR2 || now.Runner() != s.Runner.String() || !slices.Equal(now.Layers(), was.Layers()) {
		t.Errorf("read back: %v, stop signal %v, run by %s", now.First(), now.StopSignal(), now.Runner())
	}
	for range 2 {
		for _, st := range slices.Backward(b.journal.Steps()) {
			if err := st.Undo(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
	}
	if was.First().Alive() {
		t.Error("the first process runs on")
	}
	b.killGroups(t)
	b.nothingLeft(t)
}

// spared: undo does not touch a process that has the id of the first process, but is another one.
func spared(t *testing.T, s Suite) {
	b := s.bed(t, "sleep 1000")
	b.up(t)
	first := b.holder(t).First()
	text, err := os.ReadFile(b.journalPath)
	if err != nil {
		t.Fatal(err)
	}
	other := strings.ReplaceAll(string(text), fmt.Sprintf(`"start":%d`, first.Start), fmt.Sprintf(`"start":%d`, first.Start-1))
	if other == string(text) {
		t.Fatal("the journal does not have the start time of the first process")
	}
	path := b.journalPath + ".other"
	if err := os.WriteFile(path, []byte(other), 0o600); err != nil {
		t.Fatal(err)
	}
	j, err := step.Open(path, s.Family.Kinds())
	if err != nil {
		t.Fatal(err)
	}
	if err := j.Close(t.Context()); err != nil {
		t.Error(err)
	}
	if !first.Alive() {
		t.Error("the undo of one node killed the process of another")
	}
}

// refused: an error of Session.Created keeps the command from running.
func refused(t *testing.T, s Suite) {
	b := s.bed(t, "echo begun")
	no := errors.New("no")
	b.session.Created = func() error { return no }
	b.do(t, b.steps.Create)
	if err := b.try(t, b.steps.Start); !errors.Is(err, no) {
		t.Errorf("start: %v", err)
	}
	time.Sleep(100 * time.Millisecond)
	if said := b.said(t); said != "" {
		t.Errorf("it said %q", said)
	}
}

// noCommand: a command that does not exist is a CommandError, and nothing is left of the attempt.
func noCommand(t *testing.T, s Suite) {
	b := s.bed(t, "")
	b.spec.Args = []string{"/no/such/program"}
	b.plan(t)
	err := b.try(t, slices.Concat(b.steps.Create, b.steps.Start))
	if ce, ok := errors.AsType[*runner.CommandError](err); !ok || ce.Code != runner.ExitNotFound {
		t.Errorf("got %v, want a CommandError with code %d", err, runner.ExitNotFound)
	}
	b.undo(t)
	b.nothingLeft(t)
}

// inGroups: the command is in all groups when it begins. A process that was moved there later would see its
// group's path from a namespace with another root.
func inGroups(t *testing.T, s Suite) {
	b := s.bed(t, "cat /proc/self/cgroup; echo end; sleep 1000")
	b.up(t)
	said := b.await(t, "end\n")
	if s.Apart {
		said = "" // the guest's own groups
	}
	for line := range strings.SplitSeq(strings.TrimSpace(said), "\n") {
		parts := strings.SplitN(line, ":", 3)
		if len(parts) != 3 || parts[1] == "" && len(b.spec.Groups.Host.V2Controllers) == 0 {
			continue // a v2 tree without controllers
		}
		if _, known := b.spec.Groups.Host.V1[strings.Split(parts[1], ",")[0]]; parts[1] != "" && !known {
			continue // a hierarchy that is mounted nowhere
		}
		if parts[2] != "/" && parts[2] != "/"+b.spec.Groups.Path {
			t.Errorf("the command was in %q when it began", line)
		}
	}
	for _, dir := range b.groups() {
		if pids := procsOf(t, dir); !slices.Contains(pids, b.holder(t).First().PID) {
			t.Errorf("the first process, %d, is not in %s: %v", b.holder(t).First().PID, dir, pids)
		}
	}
}

// signals: a signal for which the first process has a handler arrives.
func signals(t *testing.T, s Suite) {
	b := s.bed(t, "trap 'echo heard; exit' TERM; echo ready; while :; do sleep 0.05; done")
	b.up(t)
	b.await(t, "ready\n")
	if heard, err := b.holder(t).Signal(unix.SIGTERM); !heard || err != nil {
		t.Errorf("heard: %v, %v", heard, err)
	}
	b.await(t, "heard\n")
	b.ended(t)
}

// exitCodes: the process that carries the create out learns how the first process ended.
func exitCodes(t *testing.T, s Suite) {
	for _, passed := range []bool{false, true} {
		b := s.bed(t, "exit 7")
		cmd := b.job(t, job{Do: "live", Pass: passed})
		if out, _ := cmd.CombinedOutput(); cmd.ProcessState.ExitCode() != 7 {
			t.Errorf("passed on: %v: %v, want exit status 7: %s", passed, cmd.ProcessState, out)
		}
		b.reopen(t)
	}
}

// execs: a command runs beside the first process, in its groups, and its parent learns how it ended.
func execs(t *testing.T, s Suite) {
	b := s.bed(t, "echo ready; sleep 1000")
	b.up(t)
	b.await(t, "ready\n")
	for _, c := range []struct {
		args []string
		code int
		want string
	}{
		{[]string{"sh", "-c", "echo in $FROM; exit 3"}, 3, "in exec\n"},
		{[]string{"sh", "-c", "kill -9 $$"}, 128 + 9, ""},
		{[]string{"/no/such/program"}, runner.ExitNotFound, "cannot run"},
	} {
		cmd := b.job(t, job{Do: "exec", Args: c.args})
		out, _ := cmd.CombinedOutput()
		if code := cmd.ProcessState.ExitCode(); code != c.code || !strings.HasPrefix(string(out), c.want) {
			t.Errorf("%q: exit code %d, said %q; want %d, %q", c.args, code, out, c.code, c.want)
		}
	}
	before := map[string]int{}
	for _, dir := range b.groups() {
		before[dir] = len(procsOf(t, dir))
	}
	cmd := b.job(t, job{Do: "exec", Args: []string{"sh", "-c", "cat >/dev/null"}, Stdin: true})
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, "the command is in all groups", func() bool {
		if s.Apart {
			return len(b.inside(t, s)) == 2
		}
		for _, dir := range b.groups() {
			if len(procsOf(t, dir)) <= before[dir] {
				return false
			}
		}
		return true
	})
	in.Close()
	if err := cmd.Wait(); err != nil {
		t.Error(err)
	}
}

// timeouts: a command that takes longer than its timeout is killed with all processes of its group; the first process runs on.
func timeouts(t *testing.T, s Suite) {
	b := s.bed(t, "echo ready; sleep 1000")
	b.up(t)
	b.await(t, "ready\n")
	before := b.inside(t, s)
	cmd := b.job(t, job{Do: "exec", Args: []string{"sh", "-c", "sleep 1000 >/dev/null 2>&1 & sleep 1000 >/dev/null 2>&1 & wait"}, Timeout: 300 * time.Millisecond})
	out, _ := cmd.CombinedOutput()
	if code := cmd.ProcessState.ExitCode(); code != 128+9 {
		t.Errorf("exit code %d, said %q; want %d", code, out, 128+9)
	}
	testkit.Eventually(t, "only what ran before runs", func() bool { return slices.Equal(b.inside(t, s), before) })
	cmd = b.job(t, job{Do: "exec", Args: []string{"sh", "-c", "exit 5"}, Timeout: time.Hour})
	if out, _ := cmd.CombinedOutput(); cmd.ProcessState.ExitCode() != 5 {
		t.Errorf("within its timeout: %v, said %q; want exit code 5", cmd.ProcessState, out)
	}
}

// inside lists the processes in the node's groups; where these are not the node's own, those in the node that run sleep or cat.
func (b *bed) inside(t *testing.T, s Suite) (all []int) {
	t.Helper()
	if s.Apart {
		out, err := b.job(t, job{Do: "exec", Args: []string{"sh", "-c", `for p in /proc/[0-9]*; do c=; read -r c <$p/comm; case $c in sleep|cat) echo ${p#/proc/};; esac; done`}}).Output()
		if err != nil {
			t.Fatalf("list the processes in the node: %v", err)
		}
		for word := range strings.FieldsSeq(string(out)) {
			pid, err := strconv.Atoi(word)
			testkit.Must(t, err)
			all = append(all, pid)
		}
	}
	for _, dir := range b.groups() {
		if !s.Apart {
			all = append(all, procsOf(t, dir)...)
		}
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// procsOf reads which processes are in a group.
func procsOf(t *testing.T, dir string) (pids []int) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(dir, "cgroup.procs"))
	if err != nil {
		t.Fatal(err)
	}
	for word := range strings.FieldsSeq(string(text)) {
		var pid int
		if _, err := fmt.Sscan(word, &pid); err != nil {
			t.Fatal(err)
		}
		pids = append(pids, pid)
	}
	return pids
}

// killGroups does what a node's end does first: it kills all processes of its groups.
func (b *bed) killGroups(t *testing.T) {
	t.Helper()
	if err := group.Kill(t.Context(), b.spec.Groups.Host, b.spec.Groups.Path); err != nil {
		t.Fatal(err)
	}
}
