package preload_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"berth/internal/site/intercept/preload"
	"berth/internal/sys/fork"
	"berth/test/testkit"
)

const blkio = "/sys/fs/cgroup/blkio"

// as starts a command as a user, which needs no name.
func as(t *testing.T, uid uint32, name string, args ...string) *exec.Cmd {
	t.Helper()
	c := exec.Command(name, args...)
	c.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid}}
	if err := fork.Start(c); err != nil {
		t.Fatal(err)
	}
	return c
}

// TestOwn: a server that somebody took over moves threads of its own user, and of nobody else; it makes no groups and owns none.
func TestOwn(t *testing.T) {
	testkit.NeedsRoot(t)
	if _, err := os.Stat(blkio + "/blkio.throttle.read_bps_device"); err != nil {
		t.Skip("needs cgroup v1 with blkio")
	}
	const server, other = 4_100_001, 4_100_002
	group := filepath.Join(blkio, fmt.Sprintf("berth-own-%d", os.Getpid()))
	if err := os.Mkdir(group, 0o755); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Rmdir(group); err != nil {
			t.Error(err)
		}
	})
	for range 2 { // also again
		if err := preload.Own(group, server); err != nil {
			t.Fatal(err)
		}
	}
	for name, want := range map[string]struct {
		uid   uint32
		moves bool
	}{"its own": {server, true}, "another user's": {other, false}, "root's": {0, false}} {
		t.Run(name, func(t *testing.T) {
			victim := as(t, want.uid, "sleep", "1000")
			defer func() { _ = victim.Process.Kill(); _ = fork.Wait(victim) }()
			move := as(t, server, "sh", "-c", "echo $0 > $1/tasks", strconv.Itoa(victim.Process.Pid), group)
			err := fork.Wait(move)
			if (err == nil) != want.moves {
				t.Errorf("moved: %v (%v), want %v", err == nil, err, want.moves)
			}
		})
	}
	for what, script := range map[string]string{
		"makes a group": "mkdir $0/own", "changes a limit": "echo 7:0 0 > $0/blkio.throttle.read_bps_device", "gives it away": "chown " + strconv.Itoa(other) + " $0/tasks",
		"moves a whole process": "echo $$ > $0/cgroup.procs",
	} {
		if err := fork.Wait(as(t, server, "sh", "-c", script, group)); err == nil {
			t.Errorf("the server's user %s", what)
		}
	}
	if err := preload.Own(filepath.Join(group, "gone"), server); err == nil {
		t.Error("no error for a group that is not there")
	}
}

// TestServersOfNobody: no process has the library for a file system that nobody serves.
func TestServersOfNobody(t *testing.T) {
	all, err := preload.Servers(filepath.Join(t.TempDir(), "sync", "none"))
	if err != nil || len(all) != 0 {
		t.Errorf("found %v, %v", all, err)
	}
}
