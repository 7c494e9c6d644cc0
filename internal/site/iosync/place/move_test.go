package place

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"berth/internal/host/group"
	"berth/internal/sys/fork"
	"berth/test/testkit"
)

// TestMove: a process goes into a node's group and back to where its parent is, in each hierarchy of this host; one of a node of this
// host stays, and so does one that is elsewhere meanwhile.
func TestMove(t *testing.T) {
	testkit.NeedsRoot(t)
	for _, at := range []group.Hierarchy{
		{Mount: "/sys/fs/cgroup/blkio", Controllers: []string{"blkio"}}, {Mount: "/sys/fs/cgroup/unified", V2: true}, {Mount: "/sys/fs/cgroup", V2: true},
	} {
		if _, err := os.Stat(filepath.Join(at.Mount, "cgroup.procs")); err != nil {
			continue
		}
		t.Run(at.Mount, func(t *testing.T) { moves(t, at) })
	}
}

func moves(t *testing.T, at group.Hierarchy) {
	top := fmt.Sprintf("berth-move-%d", os.Getpid())
	f := &FS{Name: "shared", at: at, top: top + "/shared", own: top + "/nodes"}
	for _, g := range []string{top, f.top, f.Group("a"), f.Group("b"), f.own, f.own + "/n"} {
		dir := filepath.Join(at.Mount, g)
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := unix.Rmdir(dir); err != nil {
				t.Errorf("remove %s: %v", dir, err)
			}
		})
	}
	c := exec.Command("sleep", "100")
	if err := fork.Start(c); err != nil {
		t.Fatal(err)
	}
	pid := c.Process.Pid
	end := func() { _ = c.Process.Kill(); _ = fork.Wait(c) }
	t.Cleanup(end)
	home, err := at.GroupOf(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		what string
		do   func() error
		want string
	}{
		{"into a", func() error { return f.Put("a", pid) }, f.Group("a")},
		{"into a again", func() error { return f.Put("a", pid) }, f.Group("a")},
		{"back from b, where it is not", func() error { return f.Back("b", pid) }, f.Group("a")},
		{"into b", func() error { return f.Put("b", pid) }, f.Group("b")},
		{"back", func() error { return f.Back("b", pid) }, home},
		{"into a node of this host", func() error { return at.Move(pid, f.own+"/n") }, f.own + "/n"},
		{"out of its node", func() error { return f.Put("a", pid) }, f.own + "/n"},
	} {
		if err := tt.do(); err != nil {
			t.Errorf("%s: %v", tt.what, err)
		}
		if got, err := at.GroupOf(pid); err != nil || got != tt.want {
			t.Errorf("%s: it is in %q, %v; want %q", tt.what, got, err, tt.want)
		}
	}
	end()
	if err := f.Put("a", pid); err != nil {
		t.Errorf("a process that has ended: %v", err)
	}
}
