package oci

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"berth/internal/runner/first"
	"berth/internal/sys/proc"
	"berth/test/testkit"
)

// TestKilledCreate kills a process with SIGKILL at random moments of its create. Then it takes the lock, undoes the step
// from the record made before, and checks that nothing is left.
func TestKilledCreate(t *testing.T) {
	t.Parallel()
	eachRuntime(t, func(t *testing.T, r Runtime) {
		for range 8 {
			n := newNode(t, r, nil)
			if err := n.bundle.Do(t.Context()); err != nil {
				t.Fatal(err)
			}
			record, err := json.Marshal(n.create)
			if err != nil {
				t.Fatal(err)
			}
			lock, err := os.Create(filepath.Join(filepath.Dir(n.out), "lock"))
			if err != nil {
				t.Fatal(err)
			}
			defer lock.Close()
			child := testkit.Again(t, "TestCreateChild", "BERTH_TEST_CREATE="+string(record), "BERTH_TEST_LOCK="+lock.Name())
			if err := child.Start(); err != nil {
				t.Fatal(err)
			}
			waitLocked(t, lock)
			time.Sleep(time.Duration(rand.IntN(50_000)) * time.Microsecond)
			_ = child.Process.Kill()
			_ = child.Wait()
			if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX); err != nil { // waits for the runtime
				t.Fatal(err)
			}
			if err := n.create.Undo(context.Background()); err != nil {
				t.Fatal(err)
			}
			killGroup(n)
			if left := leftovers(n); left != "" {
				t.Errorf("left: %s", left)
			}
		}
	})
}

// TestCreateChild is not a test: it is the process that TestKilledCreate kills.
func TestCreateChild(t *testing.T) {
	record := os.Getenv("BERTH_TEST_CREATE")
	if record == "" {
		return
	}
	var c Create
	if err := json.Unmarshal([]byte(record), &c); err != nil {
		t.Fatal(err)
	}
	f, err := os.OpenFile(os.Getenv("BERTH_TEST_LOCK"), os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	c.Launch.Lock = f
	_ = c.Do(t.Context())
	select {}
}

// waitLocked waits until somebody else holds the lock.
func waitLocked(t *testing.T, lock *os.File) {
	t.Helper()
	testkit.Eventually(t, "the child starts", func() bool {
		if unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB) != nil {
			return true
		}
		_ = unix.Flock(int(lock.Fd()), unix.LOCK_UN)
		return false
	})
}

// killGroup kills the processes of the node's groups, as their undo does.
func killGroup(n *testNode) {
	for _, m := range n.mounts {
		b, _ := os.ReadFile(filepath.Join(m, n.create.CgroupsPath, "cgroup.procs"))
		for word := range strings.FieldsSeq(string(b)) {
			if pid, err := strconv.Atoi(word); err == nil {
				_ = unix.Kill(pid, unix.SIGKILL)
			}
		}
	}
}

// leftovers returns the node's processes that do not end: those in its groups, and those that see its private
// mounts.
func leftovers(n *testNode) string {
	var left string
	testkit.Happens(func() bool {
		left = ""
		dirs, _ := filepath.Glob("/proc/[0-9]*")
		for _, d := range dirs {
			pid, _ := strconv.Atoi(filepath.Base(d))
			if st, err := proc.Read(pid); err != nil || st.Ended() {
				continue
			}
			in, _ := first.InGroup(pid, n.create.CgroupsPath)
			mounts, _ := os.ReadFile(procPath(pid, "mountinfo"))
			if in || strings.Contains(string(mounts), filepath.Dir(n.out)) {
				cmd, _ := os.ReadFile(procPath(pid, "cmdline"))
				left += fmt.Sprintf("%d %q in group: %v; ", pid, cmd, in)
			}
		}
		return left == ""
	})
	return left
}
