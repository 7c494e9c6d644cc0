package weight

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"berth/internal/host/group"
	"berth/internal/host/group/grouptest"
	"berth/internal/spec/vnode"
	"berth/internal/sys/proc"
	"berth/internal/sys/refuse"
	"berth/internal/sys/step"
	"berth/test/testkit"
)

// TestKernelForeign gives a standing to a group that is not Berth's own, and restores the old values.
func TestKernelForeign(t *testing.T) {
	h := grouptest.Host(t)
	path := grouptest.New(t, h, group.Kinds(), group.Steps)
	f := ForeignStep(vnode.Storage.Standing(), h, path, 0)
	if f == nil {
		t.Skip("no cgroup controller here that shares CPU time or disks")
	}
	before := grouptest.Contents(t, h, path, "cpu.shares", "cpu.weight", "io.weight", "io.bfq.weight", "blkio.bfq.weight")
	testkit.Must(t, f.Prepare(t.Context()))
	testkit.Must(t, f.Do(t.Context()))
	testkit.Must(t, f.Verify(t.Context()))
	if text := f.String(); !strings.HasPrefix(text, f.Values[0].Write.String()+" ") || !strings.HasSuffix(text, "in "+path) {
		t.Errorf("the step is %q", text)
	}
	for _, s := range f.Show() {
		if !s.Holds {
			t.Errorf("%+v", s)
		}
	}
	testkit.Must(t, f.Undo(t.Context()))
	for name, text := range grouptest.Contents(t, h, path, "cpu.shares", "cpu.weight", "io.weight", "io.bfq.weight", "blkio.bfq.weight") {
		if before[name] != text {
			t.Errorf("%s is %q, it was %q", name, text, before[name])
		}
	}
	f.Values[0].Inode++ // another group at the same path
	f.Values[0].Back = "2"
	testkit.Must(t, f.Undo(t.Context()))
	if got, _ := f.Values[0].Write.Effect(); got == "2" {
		t.Error("a group that is another's was changed")
	}
}

// TestKernelForeignIdle: a group that was idle has a weight, and is idle again.
func TestKernelForeignIdle(t *testing.T) {
	h := grouptest.Host(t)
	path := grouptest.New(t, h, group.Kinds(), group.Steps)
	f := ForeignStep(vnode.Storage.Standing(), h, path, 0)
	if f == nil || f.Values[0].Key != "class.cpu" {
		t.Skip("no cgroup controller here that shares CPU time or disks")
	}
	idle := filepath.Join(filepath.Dir(f.Values[0].Write.File), "cpu.idle")
	if err := group.WriteFile(idle, "1"); group.Gone(err) {
		t.Skip("this kernel has no cpu.idle")
	} else if err != nil {
		t.Fatal(err)
	}
	testkit.Must(t, f.Prepare(t.Context()))
	testkit.Must(t, f.Do(t.Context()))
	testkit.Must(t, f.Verify(t.Context()))
	if got := grouptest.Text(t, idle); got != "0" {
		t.Errorf("cpu.idle of a group with a weight is %s", got)
	}
	testkit.Must(t, f.Undo(t.Context()))
	if got := grouptest.Text(t, idle); got != "1" {
		t.Errorf("cpu.idle is %s again", got)
	}
}

// TestKernelAdopt moves a process and its child to a group of their own, and back. A third process that the first one
// starts there moves back with them.
func TestKernelAdopt(t *testing.T) {
	h := grouptest.Host(t)
	cmd := exec.Command("sh", "-c", "sleep 1000 & read x; sleep 1001 & wait")
	in, err := cmd.StdinPipe()
	testkit.Must(t, err)
	testkit.Must(t, cmd.Start())
	family := func(n int) []int {
		var all []int
		testkit.Eventually(t, "the processes to start", func() bool {
			all = proc.Family(cmd.Process.Pid)
			return len(all) == n
		})
		return all
	}
	first := family(2)
	t.Cleanup(func() {
		for _, pid := range proc.Family(cmd.Process.Pid)[1:] {
			if p, err := os.FindProcess(pid); err == nil {
				_ = p.Kill()
			}
		}
		_ = cmd.Process.Kill()
		_ = cmd.Wait() // the error only says that it was killed
	})
	before, err := GroupsOf(h, first[1])
	testkit.Must(t, err)
	own := grouptest.Parent(t, h)
	steps, err := AdoptSteps(vnode.Storage.Standing(), h, own, first[0], 0, 0)
	testkit.Must(t, err)
	for _, s := range steps {
		grouptest.Do(t, step.Join(group.Kinds(), Kinds()), s)
	}
	_, err = in.Write([]byte("\n"))
	testkit.Must(t, err)
	for _, pid := range family(3) {
		groups, err := GroupsOf(h, pid)
		testkit.Must(t, err)
		for _, g := range groups {
			if g != own {
				t.Errorf("process %d is in %q", pid, g)
			}
		}
	}
	if found, ok, err := OwnGroup(h, first[0]); found != own || !ok || err != nil {
		t.Errorf("own group %q %v %v", found, ok, err)
	}
	for _, s := range steps { // somebody moves a child back
		a, ok := s.(*Adopt)
		if !ok {
			continue
		}
		if why := a.Lost(); why != "" {
			t.Errorf("nobody moved anything: %s", why)
		}
		testkit.Must(t, a.In[0].Move(first[1], a.In[0].From))
		if why := a.Lost(); !strings.Contains(why, "somebody else moved it") {
			t.Errorf("a child is where it came from: %q", why)
		}
		testkit.Must(t, a.Do(t.Context()))
		if why := a.Lost(); why != "" {
			t.Errorf("it was moved again: %s", why)
		}
	}
	for _, s := range steps {
		if a, ok := s.(*Adopt); ok {
			testkit.Must(t, a.Undo(context.Background()))
		}
	}
	for _, pid := range family(3) {
		groups, err := GroupsOf(h, pid)
		testkit.Must(t, err)
		if groups[0] != before[0] {
			t.Errorf("process %d is in %q, it came from %q", pid, groups[0], before[0])
		}
	}
	for _, hh := range group.Hierarchies(h) {
		if _, err := os.Stat(filepath.Join(hh.Mount, own)); err == nil {
			t.Errorf("left: %s in %s", own, hh.Mount)
		}
	}
}

// TestKernelAdoptThreads takes a process of which a thread is in a group of its own, and gives it back where it came from is gone: the thread stays
// where it is, and the others return to the nearest group above. On v1 alone a thread may be in any group.
func TestKernelAdoptThreads(t *testing.T) {
	const again = "BERTH_TEST_THREADS"
	if os.Getenv(again) != "" {
		_, _ = os.Stdout.WriteString("up\n")
		_, _ = os.Stdin.Read(make([]byte, 1)) // until the test ends
		return
	}
	h := grouptest.Host(t)
	in := slices.DeleteFunc(sharing(h), func(hh group.Hierarchy) bool { return hh.V2 })
	if len(in) == 0 {
		t.Skip("needs cgroup v1: single threads are moved")
	}
	top := grouptest.Parent(t, h)
	for _, path := range []string{top, top + "/from", top + "/from/inner", top + "/own"} {
		for _, hh := range in {
			dir := filepath.Join(hh.Mount, path)
			testkit.Must(t, os.Mkdir(dir, 0o755))
			t.Cleanup(func() { _ = os.Remove(dir) })
		}
	}
	cmd := testkit.Again(t, "TestKernelAdoptThreads", again+"=yes")
	stdin, err := cmd.StdinPipe()
	testkit.Must(t, err)
	out, err := cmd.StdoutPipe()
	testkit.Must(t, err)
	testkit.Must(t, cmd.Start())
	t.Cleanup(func() { stdin.Close(); _ = cmd.Wait() })
	_, err = out.Read(make([]byte, 3))
	testkit.Must(t, err)
	pid := cmd.Process.Pid
	threads := proc.Threads(pid)
	own := threads[len(threads)-1]
	if own == pid {
		t.Fatalf("process %d has one thread", pid)
	}
	for _, hh := range in {
		testkit.Must(t, hh.Move(pid, top+"/from/inner"))
		testkit.Must(t, hh.MoveTask(own, top+"/own"))
	}
	is := func(when string, task int, want string) {
		t.Helper()
		for _, hh := range in {
			if at, err := hh.GroupOf(task); err != nil || at != want {
				t.Errorf("%s: thread %d is in %q of %s, %v; want %q", when, task, at, hh.Title(), err, want)
			}
		}
	}
	steps, err := AdoptSteps(vnode.Storage.Standing(), h, top+"/new", pid, 0, 0)
	testkit.Must(t, err)
	var adopt *Adopt
	for _, s := range steps {
		if a, ok := s.(*Adopt); ok {
			adopt = a
		}
	}
	testkit.Must(t, adopt.Do(t.Context()))
	is("adopted", pid, top+"/new")
	is("adopted", own, top+"/own")
	for _, hh := range in {
		testkit.Must(t, os.Remove(filepath.Join(hh.Mount, top+"/from/inner")))
	}
	testkit.Must(t, adopt.Undo(t.Context()))
	is("given back", pid, top+"/from")
	is("given back", own, top+"/own")
	if said := strings.Join(adopt.Elsewhere, "; "); strings.Count(said, "the cgroup /"+top+"/from/inner of ") != len(in) || !strings.Contains(said, "they are in /"+top+"/from") {
		t.Errorf("where they are is told as %q", said)
	}
	stdin.Close()
	testkit.Must(t, cmd.Wait())
}

// TestControllerSwitchedOff: a group that lost a controller to somebody else's change is refused, with the line that gives it back.
func TestControllerSwitchedOff(t *testing.T) {
	v := &ForeignValue{}
	v.Write.File = "/sys/fs/cgroup/system.slice/a.service/io.weight"
	err := v.switchedOff("system.slice/a.service")
	if refuse.KindOf(err) != refuse.Cannot || !strings.Contains(err.Error(), "switched io off") || !strings.Contains(err.Error(), "echo +io >/sys/fs/cgroup/system.slice/cgroup.subtree_control") {
		t.Error(err)
	}
}

// TestHome: processes return to where they came from, or to the nearest group above that takes processes.
func TestHome(t *testing.T) {
	mount := t.TempDir()
	testkit.Must(t, os.MkdirAll(filepath.Join(mount, "user.slice/user-0.slice/session-3.scope"), 0o755))
	in := Adopter{Hierarchy: group.Hierarchy{Mount: mount, V2: true}, From: "user.slice/user-0.slice/session-3.scope"}
	share := func(group, controllers string) {
		testkit.Must(t, os.WriteFile(filepath.Join(mount, group, "cgroup.subtree_control"), []byte(controllers+"\n"), 0o600))
	}
	is := func(when, want string) {
		t.Helper()
		if got := in.home(); got != want {
			t.Errorf("%s: %q, want %q", when, got, want)
		}
	}
	is("it is there", in.From)
	testkit.Must(t, os.Remove(filepath.Join(mount, in.From)))
	share("user.slice/user-0.slice", "")
	is("it is gone", "user.slice/user-0.slice")
	share("user.slice/user-0.slice", "memory pids")
	is("the one above shares controllers", "user.slice")
	share("user.slice", "memory")
	is("all above do", "")
}

func TestJournal(t *testing.T) {
	grouptest.Journal(t, Kinds(), ClassStep(&vnode.Node{Class: vnode.Batch}, grouptest.V2(), "berth.batch/x"),
		&Foreign{Path: "x", Values: []ForeignValue{{Back: "100", Inode: 7}}}, &Adopt{Path: "x", PID: 7, In: []Adopter{{From: "y"}}})
}
