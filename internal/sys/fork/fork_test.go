package fork

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"berth/test/testkit"
)

// orphan is a script that leaves an orphan behind, which ends with code 9 when descriptor 3 ends, and prints its pid.
const orphan = "(read x <&3; exit 9) >/dev/null & echo $!; exit 7"

// leave runs such a script. The orphan is there until end is called: a shell that is slow would reap it itself, if it ended before the shell.
func leave() (pid int, end func(), err error) {
	wait, ends, err := os.Pipe()
	if err != nil {
		return 0, func() {}, err
	}
	defer wait.Close()
	cmd := exec.Command("/bin/sh", "-c", orphan)
	cmd.ExtraFiles = []*os.File{wait} // descriptor 3
	out, err := Output(cmd)
	pid, bad := strconv.Atoi(strings.TrimSpace(string(out)))
	return pid, func() { ends.Close() }, cmp.Or(err, bad)
}

// TestEachEndsOnce runs programs side by side while orphans end. Each program's status goes to its caller, and each
// orphan's status is kept.
func TestEachEndsOnce(t *testing.T) {
	if err := Adopt(t.Context()); err != nil {
		t.Fatal(err)
	}
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() {
			for range 50 {
				pid, end, err := leave()
				end()
				if ee, ok := errors.AsType[*exec.ExitError](err); !ok || ee.ExitCode() != 7 {
					t.Errorf("the program ended with %v, want exit status 7", err)
					return
				}
				if err := ended(pid, 9); err != nil {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
	if _, ok := Ended(os.Getpid()); ok {
		t.Error("this process is not its own child")
	}
}

// TestOrphansOfOthers: a process that adopts no orphans, as berth exec, waits for its own child itself: a program that
// ends after the child does not take the child's status away.
func TestOrphansOfOthers(t *testing.T) {
	const child = "BERTH_TEST_FORK_CHILD"
	if os.Getenv(child) == "" { // no other test of this process may have called Adopt
		if out, err := testkit.Again(t, "TestOrphansOfOthers", child+"=1").CombinedOutput(); err != nil {
			t.Errorf("%v: %s", err, out)
		}
		return
	}
	p, err := os.StartProcess("/bin/true", []string{"true"}, &os.ProcAttr{})
	if err != nil {
		t.Fatal(err)
	}
	var info unix.Siginfo
	if err := unix.Waitid(unix.P_PID, p.Pid, &info, unix.WEXITED|unix.WNOWAIT, nil); err != nil {
		t.Fatal(err)
	}
	if err := Run(exec.CommandContext(t.Context(), "/bin/true")); err != nil {
		t.Fatal(err)
	}
	if st, err := p.Wait(); err != nil || !st.Success() {
		t.Errorf("the child's status is lost: %v", err)
	}
}

// ended waits for an orphan's end and checks its exit code.
func ended(pid, code int) error {
	var ws unix.WaitStatus
	if !testkit.Happens(func() (ok bool) { ws, ok = Ended(pid); return ok }) {
		return fmt.Errorf("the end of orphan %d was not seen", pid)
	}
	if !ws.Exited() || ws.ExitStatus() != code {
		return fmt.Errorf("the orphan ended with status %#x, want exit status %d", ws, code)
	}
	return nil
}

// TestReapsWithoutBeingAsked checks that an orphan that nobody asks about does not stay a zombie, also when it ended before a
// program that somebody waits for.
func TestReapsWithoutBeingAsked(t *testing.T) {
	if err := Adopt(t.Context()); err != nil {
		t.Fatal(err)
	}
	pid, end, err := leave()
	if ee, ok := errors.AsType[*exec.ExitError](err); !ok || ee.ExitCode() != 7 {
		t.Fatal(err)
	}
	end()
	testkit.Eventually(t, fmt.Sprintf("orphan %d is reaped", pid), func() bool { return unix.Kill(pid, 0) != nil })
}

// TestStartFails checks that a program that cannot start is an error, and that orphans are still reaped afterwards.
func TestStartFails(t *testing.T) {
	if err := Run(exec.Command("/nowhere")); err == nil {
		t.Error("a program that is not there ran")
	}
	if _, err := StartProcess("/nowhere", nil, &os.ProcAttr{}); err == nil {
		t.Error("a program that is not there started")
	}
	children.mu.Lock()
	defer children.mu.Unlock()
	if children.starting != 0 || len(children.owned) != 0 {
		t.Errorf("%d programs start and %d are waited for, want none", children.starting, len(children.owned))
	}
}
