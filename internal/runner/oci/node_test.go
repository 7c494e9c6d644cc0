package oci

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"berth/internal/host"
	"berth/internal/image/imagetest"
	"berth/internal/runner"
	"berth/internal/runner/runnertest"
	"berth/internal/runner/streams"
	"berth/internal/storage/mounts"
	"berth/test/testkit"
)

const testIDBase, testIDSize = 1 << 29, 65536

// testNode is a real node for a test: busybox on an overlay, in its own groups.
type testNode struct {
	bundle *Bundle
	create *Create
	start  *Start
	out    string // file with its stdout and stderr
	mounts []string
}

var nodesMade atomic.Int32

// eachRuntime runs a test with every runtime of this host.
func eachRuntime(t *testing.T, test func(t *testing.T, r Runtime)) {
	t.Helper()
	testkit.NeedsRoot(t)
	for _, name := range runtimeNames() {
		t.Run(name, func(t *testing.T) {
			for _, r := range paths() {
				if r.Name == name {
					test(t, r)
					return
				}
			}
			t.Skipf("%s is not installed", name)
		})
	}
}

// cgroupMounts returns where the hierarchies are mounted, and which of them to hide from a runtime.
func cgroupMounts(t testing.TB, runtime string) (all, hide []string, v2 string) {
	t.Helper()
	c, err := host.ReadCgroups("/proc")
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]bool{}
	for _, m := range c.V1 {
		if !seen[m] {
			seen[m] = true
			all = append(all, m)
		}
	}
	if c.V2 != "" {
		all = append(all, c.V2)
	}
	if runtime == "crun" && c.Mode() == "hybrid" {
		return all, []string{c.V2}, c.V2
	}
	return all, nil, ""
}

// testSpec describes a node that runs a script: busybox on an overlay.
func testSpec(t testing.TB, dir, script string) runner.Spec {
	t.Helper()
	for _, d := range []string{"root", "stage"} {
		if err := os.Mkdir(filepath.Join(dir, d), 0o711); err != nil {
			t.Fatal(err)
		}
	}
	return runner.Spec{
		Node: "wn-001", Hostname: "wn-001", Args: []string{"/bin/sh", "-c", script},
		Content: mounts.Plan{
			Dir: filepath.Join(dir, "stage"), IDs: mounts.IDs{Base: testIDBase, Size: testIDSize},
			Root: mounts.Root{At: filepath.Join(dir, "root"), Lower: []string{imagetest.BusyboxDir(t)}, Memory: true},
		},
	}
}

// TestConformance runs the suite of all runners with each runtime.
func TestConformance(t *testing.T) {
	if testing.Short() {
		t.Skip("needs a longer run: half a minute of containers")
	}
	eachRuntime(t, func(t *testing.T, r Runtime) {
		runnertest.Suite{Family: Family{}, Runner: r, Spec: func(t *testing.T, dir, script string) runner.Spec {
			return testSpec(t, dir, script)
		}}.Run(t)
	})
}

// newNode describes a node; change may alter its input. The node is removed at the end of the test in any case.
func newNode(t testing.TB, r Runtime, change func(*runner.Spec)) *testNode {
	t.Helper()
	dir := testkit.Dir(t, "")
	id := fmt.Sprintf("berth-test-%d-%d", os.Getpid(), nodesMade.Add(1))
	in := testSpec(t, dir, "sleep 1000")
	in.Args = []string{"/bin/sleep", "1000"}
	in.Node, in.Groups = id, runner.Groups{Path: id}
	in.Dir, in.State, in.PIDFile, in.Log = dir, filepath.Join(dir, "state"), filepath.Join(dir, "pid"), filepath.Join(dir, "log")
	if change != nil {
		change(&in)
	}
	all, hide, v2 := cgroupMounts(t, r.Name)
	in.Content.Hide = hide
	steps, err := r.Steps(in)
	if err != nil {
		t.Fatal(err)
	}
	n := &testNode{
		bundle: steps.Create[0].(*Bundle), create: steps.Create[1].(*Create), start: steps.Start[0].(*Start),
		out: filepath.Join(dir, "out"), mounts: all,
	}
	if v2 != "" {
		n.create.Launch.Entry.V2 = filepath.Join(v2, id)
		if err := os.Mkdir(n.create.Launch.Entry.V2, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	out, err := os.Create(n.out)
	if err != nil {
		t.Fatal(err)
	}
	n.create.Launch.Stdout, n.create.Launch.Stderr = out, out
	t.Cleanup(func() {
		out.Close()
		n.remove(t)
	})
	return n
}

func (n *testNode) remove(t testing.TB) {
	ctx := context.Background()
	for _, err := range []error{n.create.Undo(ctx), n.create.Undo(ctx), n.bundle.Undo(ctx), n.bundle.Undo(ctx)} {
		if err != nil {
			t.Error(err)
		}
	}
	for _, m := range n.mounts {
		if err := syscall.Rmdir(filepath.Join(m, n.create.CgroupsPath)); err != nil && !errors.Is(err, syscall.ENOENT) {
			t.Error(m, err)
		}
	}
}

func (n *testNode) up(t testing.TB) {
	t.Helper()
	if err := n.doAll(t.Context()); err != nil {
		t.Fatalf("%v\n%s", err, n.said())
	}
}

func (n *testNode) doAll(ctx context.Context) error {
	for _, s := range []interface {
		Do(context.Context) error
		Verify(context.Context) error
	}{n.bundle, n.create, n.start} {
		if err := s.Do(ctx); err != nil {
			return err
		}
		if err := s.Verify(ctx); err != nil {
			return err
		}
	}
	return nil
}

func (n *testNode) said() string {
	b, _ := os.ReadFile(n.out)
	return string(b)
}

// ended waits for the end of the node's init.
func (n *testNode) ended(t testing.TB) {
	t.Helper()
	if err := finished(t.Context(), n.create.Init); err != nil {
		t.Fatal(err)
	}
}

// sh runs a shell script as the node's command and returns what it printed.
func sh(t *testing.T, r Runtime, script string, change func(*runner.Spec)) string {
	t.Helper()
	n := newNode(t, r, func(in *runner.Spec) {
		in.Args = []string{"/bin/sh", "-c", script}
		if change != nil {
			change(in)
		}
	})
	n.up(t)
	n.ended(t)
	return n.said()
}

// execCmd runs a command in the node through Exec, in a child of this test, which becomes a subreaper.
func (n *testNode) execCmd(t *testing.T, args ...string) *exec.Cmd {
	t.Helper()
	record, err := json.Marshal(n.create)
	if err != nil {
		t.Fatal(err)
	}
	return testkit.Again(t, "TestExecChild", "BERTH_TEST_EXEC="+strings.Join(args, "\x1f"), "BERTH_TEST_CREATED="+string(record))
}

// TestExecChild is not a test: it is the berth exec of TestExec.
func TestExecChild(t *testing.T) {
	args := os.Getenv("BERTH_TEST_EXEC")
	if args == "" {
		return // only in a child of TestExec
	}
	var create Create
	if err := json.Unmarshal([]byte(os.Getenv("BERTH_TEST_CREATED")), &create); err != nil {
		t.Fatal(err)
	}
	e := runner.Command{Args: strings.Split(args, "\x1f"), Env: []string{"FROM=exec"}}
	drain := func() {}
	if os.Getenv("BERTH_TEST_TTY") == "" {
		e.Stdout, e.Stderr = os.Stdout, os.Stderr // not stdin, the host's /dev/null: the runtimes give the streams away
	} else {
		attached := make(chan *streams.Terminal, 1)
		e.Terminal = &runner.Terminal{Listen: func(path string) error {
			tty, err := streams.ListenTerminal(path)
			if err == nil {
				go func() { _ = tty.Attach(os.Stdin, os.Stdout); attached <- tty }()
			}
			return err
		}}
		drain = func() { _ = (<-attached).Drain() }
	}
	p, err := create.Exec(t.Context(), e)
	var ws unix.WaitStatus
	if err == nil {
		ws, err = p.Wait()
	}
	if ce, ok := errors.AsType[*runner.CommandError](err); ok {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(ce.Code)
	}
	if err != nil {
		t.Fatal(err)
	}
	drain()
	os.Exit(ws.ExitStatus())
}
