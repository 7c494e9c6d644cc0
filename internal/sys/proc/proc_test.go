package proc

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

func TestParse(t *testing.T) {
	const tail = " S 7 1 1 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 3 0 4711 100 200"
	for _, tc := range []struct {
		name, text string
		want       Stat
		bad        bool
	}{
		{name: "plain", text: "42 (sh)" + tail, want: Stat{State: 'S', Flags: 4194560, Parent: 7, Threads: 3, Start: 4711}},
		{name: "a name like a stat", text: "42 (a) Z 1 (b)" + tail, want: Stat{State: 'S', Flags: 4194560, Parent: 7, Threads: 3, Start: 4711}},
		{name: "short", text: "42 (sh) S 7", bad: true},
		{name: "empty", text: "", bad: true},
		{name: "not numbers", text: "42 (sh) S x 1 1 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 3 0 4711 100 200", bad: true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got, err := parse([]byte(tc.text))
			if (err != nil) != tc.bad || !tc.bad && got != tc.want {
				t.Errorf("got %+v, %v; want %+v", got, err, tc.want)
			}
		})
	}
}

func sleeper(t *testing.T) (*exec.Cmd, ID, *os.File) {
	t.Helper()
	cmd := exec.Command("sleep", "60")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	id, err := Of(cmd.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	pidfd, err := id.Open()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { pidfd.Close() })
	return cmd, id, pidfd
}

func TestLife(t *testing.T) {
	cmd, id, pidfd := sleeper(t)
	if s, err := Read(id.PID); err != nil || s.Parent != os.Getpid() {
		t.Errorf("read: %+v, %v", s, err)
	}
	if !id.Alive() || id.Ending() {
		t.Error("it does not count as alive")
	}
	other := ID{id.PID, id.Start + 1}
	if other.Alive() {
		t.Error("a process of another start time counts as the same")
	}
	if _, err := other.Open(); !errors.Is(err, unix.ESRCH) {
		t.Errorf("open a process of another start time: %v", err)
	}
	if WaitFor(t.Context(), pidfd, time.Millisecond) {
		t.Error("a sleeping process counts as ended")
	}
	if err := Signal(pidfd, unix.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := Wait(t.Context(), pidfd); err != nil {
		t.Fatal(err)
	}
	if id.Alive() || !id.Ending() {
		t.Error("a zombie counts as alive")
	}
	if os.Geteuid() == 0 {
		if ws, ok := Exit(pidfd, id); !ok || ws.Signal() != unix.SIGTERM {
			t.Errorf("a zombie's wait status: %v, %v", ws, ok)
		}
	}
	_ = cmd.Wait()
	if _, err := Read(id.PID); !Gone(err) {
		t.Errorf("read a process that is gone: %v", err)
	}
	if ws, ok := ReapedExit(pidfd); ok && ws.Signal() != unix.SIGTERM { // kernels before 6.15 do not tell
		t.Errorf("wait status of a reaped process: %v", ws)
	}
	if err := Signal(pidfd, unix.SIGTERM); !errors.Is(err, unix.ESRCH) {
		t.Errorf("signal a process that is gone: %v", err)
	}
}

func TestWaitEndsWithContext(t *testing.T) {
	_, _, pidfd := sleeper(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := Wait(ctx, pidfd); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	if WaitFor(t.Context(), pidfd, time.Millisecond) { // the deadline of the first call is forgotten
		t.Error("it counts as ended")
	}
}

func TestHandles(t *testing.T) {
	_, id, _ := sleeper(t)
	if Handles(id.PID, unix.SIGTERM) {
		t.Error("sleep has no handler for SIGTERM")
	}
	if !Handles(os.Getpid(), unix.SIGURG) {
		t.Error("Go's runtime handles SIGURG")
	}
}

// fetch blocks a signal and fetches it again and again, as some inits do. It writes the number of its thread first.
func fetch(t *testing.T) {
	runtime.LockOSThread()
	set := unix.Sigset_t{Val: [len(unix.Sigset_t{}.Val)]uint64{1 << (unix.SIGUSR2 - 1)}}
	if err := unix.PthreadSigmask(unix.SIG_BLOCK, &set, nil); err != nil {
		t.Fatal(err)
	}
	signal.Ignore(unix.SIGUSR2) // the handler that Go's runtime has for each signal
	fmt.Println(unix.Gettid())
	for wait := (unix.Timespec{Nsec: 1000}); ; {
		_, _, _ = unix.RawSyscall6(unix.SYS_RT_SIGTIMEDWAIT, uintptr(unsafe.Pointer(&set)), 0, uintptr(unsafe.Pointer(&wait)), 8, 0, 0)
		for begun := time.Now(); time.Since(begun) < 50*time.Microsecond; { // about as long as it waits
		}
	}
}

// TestHandlesFetched: a process that fetches its signals is seen to handle them whatever it is just doing.
func TestHandlesFetched(t *testing.T) {
	const fetches = "BERTH_TEST_FETCHES" // makes this test the process that is looked at
	if os.Getenv(fetches) != "" {
		fetch(t)
	}
	cmd := exec.Command(os.Args[0], "-test.run=^TestHandlesFetched$")
	cmd.Env = append(os.Environ(), fetches+"=1")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = cmd.Process.Kill(); _ = cmd.Wait() }()
	var thread int
	if _, err := fmt.Fscanln(out, &thread); err != nil {
		t.Fatal(err)
	}
	missed := 0
	for range 2000 {
		if !Handles(thread, unix.SIGUSR2) {
			missed++
		}
	}
	if missed > 0 {
		t.Errorf("%d of 2000 looks found no handler", missed)
	}
}

// TestAliveWithoutFiles: a process that cannot be looked at is not taken to have ended.
func TestAliveWithoutFiles(t *testing.T) {
	self, err := Self()
	if err != nil {
		t.Fatal(err)
	}
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 0, Max: limit.Max}); err != nil {
		t.Fatal(err)
	}
	_, readErr := Read(self.PID)
	lives := self.Alive()
	_, openErr := self.Open()
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	if !errors.Is(readErr, unix.EMFILE) || !lives {
		t.Errorf("with no file descriptor left: %v; alive: %v", readErr, lives)
	}
	if !errors.Is(openErr, unix.EMFILE) {
		t.Errorf("open with no file descriptor left: %v", openErr)
	}
	// Enough for the pidfd, and not for its stat.
	spare, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	next := uint64(spare.Fd())
	spare.Close()
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: next + 1, Max: limit.Max}); err != nil {
		t.Fatal(err)
	}
	_, openErr = self.Open()
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	if !errors.Is(openErr, unix.EMFILE) {
		t.Errorf("open with one file descriptor left: %v", openErr)
	}
}
