package runnertest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"berth/internal/runner"
	"berth/internal/sys/step"
	"berth/test/testkit"
)

// jobVariable holds the job of a process that the suite started.
const jobVariable = "BERTH_RUNNERTEST_JOB"

// job is what another process shall do with a bed.
type job struct {
	Do      string // live: start the node and wait for its end · exec: run a command in it · die: start the node and be killed
	Spec    runner.Spec
	Journal string
	Lock    string
	Args    []string
	Timeout time.Duration // exec: of the command
	Stdin   bool          // exec: this process's standard input is a pipe for the command; else its output is one
	Pass    bool          // the create goes through JSON and the family, as through a keeper
	Point   int           // die: at which point; -1: the parent kills
}

// job prepares another process.
func (b *bed) job(t *testing.T, j job) *exec.Cmd {
	t.Helper()
	j.Spec, j.Journal, j.Lock = b.spec, b.journalPath, b.lock
	text, err := json.Marshal(j)
	if err != nil {
		t.Fatal(err)
	}
	return testkit.Again(t, t.Name(), jobVariable+"="+string(text))
}

// work does a job and ends the process.
func (s Suite) work(t *testing.T, text string) {
	var j job
	if err := json.Unmarshal([]byte(text), &j); err != nil {
		t.Fatal(err)
	}
	switch j.Do {
	case "live":
		os.Exit(s.live(t, j))
	case "exec":
		os.Exit(s.exec(t, j))
	default:
		s.die(t, j)
	}
}

// live starts the node, and returns the exit code of its first process.
func (s Suite) live(t *testing.T, j job) int {
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		t.Fatal(err)
	}
	session := runner.Session{Files: runner.Files{Stdout: os.Stdout, Stderr: os.Stderr}}
	if j.Pass {
		session.Launch = func(ctx context.Context, l *runner.Launch) error {
			text, err := json.Marshal(l)
			if err != nil {
				return err
			}
			passed := runner.Launch{Files: l.Files}
			if err := json.Unmarshal(text, &passed); err != nil {
				return err
			}
			return s.Family.Create(ctx, &passed)
		}
	}
	journal := s.start(t, j, &session, -1)
	var ws unix.WaitStatus
	if _, err := unix.Wait4(runner.FirstProcess(journal.Steps()).First().PID, &ws, 0, nil); err != nil {
		t.Fatal(err)
	}
	return ws.ExitStatus()
}

// exec runs a command in the node and returns its exit code.
func (s Suite) exec(t *testing.T, j job) int {
	journal, err := step.Open(j.Journal, s.Family.Kinds())
	if err != nil {
		t.Fatal(err)
	}
	command := runner.Command{Args: j.Args, Env: []string{"FROM=exec"}, Timeout: j.Timeout}
	if j.Stdin { // pipes only: a runner may give its streams to the node's root
		command.Stdin = os.Stdin
	} else {
		command.Stdout, command.Stderr = os.Stdout, os.Stderr
	}
	child, err := runner.FirstProcess(journal.Steps()).Exec(t.Context(), command)
	var ws unix.WaitStatus
	if err == nil {
		ws, err = child.Wait()
	}
	if ce, ok := errors.AsType[*runner.CommandError](err); ok {
		fmt.Println(err)
		return ce.Code
	}
	if err != nil {
		t.Fatal(err)
	}
	if ws.Signaled() {
		return 128 + int(ws.Signal())
	}
	return ws.ExitStatus()
}

// die starts the node and waits to be killed.
func (s Suite) die(t *testing.T, j job) {
	lock, err := os.OpenFile(j.Lock, os.O_RDWR, 0)
	if err == nil {
		err = unix.Flock(int(lock.Fd()), unix.LOCK_EX)
	}
	if err != nil {
		t.Fatal(err)
	}
	s.start(t, j, &runner.Session{Files: runner.Files{Lock: lock}}, j.Point)
	fmt.Println("through")
	time.Sleep(time.Hour)
}

// start starts the node of a job. The process dies at a point; -1: at none.
func (s Suite) start(t *testing.T, j job, session *runner.Session, point int) *step.Journal {
	steps, err := s.Runner.Steps(j.Spec)
	if err != nil {
		t.Fatal(err)
	}
	journal, err := step.Create(j.Journal, j.Spec.Node, "boot")
	if err != nil {
		t.Fatal(err)
	}
	for _, st := range slices.Concat(steps.Create, steps.Start) {
		session.Attach(st)
		if point >= 0 {
			st = &mortal{st, &point}
		}
		if err := journal.Do(t.Context(), st); err != nil {
			t.Fatal(err)
		}
	}
	return journal
}

// mortal is a step that kills its process after some calls.
type mortal struct {
	step.Step
	left *int // calls
}

func (m *mortal) MarshalJSON() ([]byte, error) { return json.Marshal(m.Step) }

func (m *mortal) Do(ctx context.Context) error {
	m.pass()
	err := m.Step.Do(ctx)
	m.pass()
	return err
}

func (m *mortal) Verify(ctx context.Context) error {
	err := m.Step.Verify(ctx)
	m.pass()
	return err
}

func (m *mortal) pass() {
	if *m.left--; *m.left < 0 {
		_ = unix.Kill(os.Getpid(), unix.SIGKILL)
		time.Sleep(time.Hour)
	}
}

// kills: wherever the process that starts a node is killed, the journal is enough to leave nothing behind.
func kills(t *testing.T, s Suite) {
	const atRandom = 6
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	through := false
	for point := -atRandom; !through; point++ {
		b := s.bed(t, "sleep 1000")
		cmd := b.job(t, job{Do: "die", Point: max(point, -1)})
		out, err := cmd.StdoutPipe()
		if err == nil {
			err = cmd.Start()
		}
		if err != nil {
			t.Fatal(err)
		}
		if point < 0 {
			testkit.Eventually(t, "the process has begun", func() bool { _, err := os.Stat(b.journalPath); return err == nil })
			time.Sleep(time.Duration(random.IntN(60_000)) * time.Microsecond)
		} else {
			word := make([]byte, 7)
			n, _ := out.Read(word) // at the latest when the process has died
			through = string(word[:n]) == "through"
		}
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		b.cleanUp(t)
		b.nothingLeft(t)
		if t.Failed() {
			t.Fatalf("killed at point %d", point)
		}
	}
}

// cleanUp does what a repair does: it waits until no process works on the node, kills what is in its groups, and undoes.
func (b *bed) cleanUp(t *testing.T) {
	t.Helper()
	lock, err := os.OpenFile(b.lock, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Close()
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	b.killGroups(t)
	b.reopen(t)
	b.undo(t)
}
