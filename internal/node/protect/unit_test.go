package protect

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"berth/internal/host"
	"berth/internal/host/group"
	"berth/internal/host/group/grouptest"
	"berth/internal/host/systemd"
	"berth/internal/spec/vnode"
	"berth/internal/sys/layout"
	"berth/internal/sys/proc"
	"berth/internal/sys/refuse"
	"berth/test/testkit"
)

// TestInKernel: what another program writes to the group of a unit is seen, although systemd knows nothing of it.
func TestInKernel(t *testing.T) {
	h, dir := grouptest.Drawn(t)
	write := func(name, text string) {
		testkit.Must(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644))
	}
	for _, above := range []string{"..", "../.."} {
		write(above+"/cgroup.subtree_control", "cpu io memory\n")
	}
	for _, tc := range []struct{ property, value, file, text, want string }{
		{"CPUWeight", "1000", "cpu.weight", "1000\n", ""},
		{"CPUWeight", "1000", "cpu.weight", "77\n", "cpu.weight is 77, not 1000"},
		{"IOWeight", "1000", "io.weight", "default 1000\n8:0 5\n", ""}, // BFQ's module is not loaded
		{"IOWeight", "1000", "io.bfq.weight", "default 181\n", ""},
		{"IOWeight", "1000", "io.bfq.weight", "default 1000\n", ""}, // systemd before 250
		{"IOWeight", "50", "io.bfq.weight", "default 50\n", "io.weight is 1000, not 50"},
		{"IOWeight", "1000", "io.bfq.weight", "default 77\n", "io.bfq.weight is 77, not 181"},
		{"MemoryLow", "20971521", "memory.low", "20971520\n", ""},
		{"MemoryLow", "20971520", "memory.low", "0\n", "memory.low is 0, not 20971520"},
		{"MemoryLow", "infinity", "memory.low", "max\n", ""},
		{"CPUQuotaPerSecUSec", "1s", "cpu.max", "max 100000\n", ""}, // none of Berth's
		{"CPUWeight", "1000", "../cgroup.subtree_control", "io memory\n", "the cgroup " + filepath.Dir(dir) + " hands cpu on no more: somebody else switched it off"},
		{"MemoryLow", "20971520", "../../cgroup.subtree_control", "cpu io\n", "the cgroup " + h.V2 + " hands memory on no more: somebody else switched it off"},
	} {
		write(tc.file, tc.text)
		if got := inKernel(systemd.Property{Name: tc.property, Value: tc.value}, h, "berth/wn"); got != tc.want {
			t.Errorf("%s=%s, %s has %q: %q, want %q", tc.property, tc.value, tc.file, tc.text, got, tc.want)
		}
	}
	if got := inKernel(systemd.Property{Name: "CPUWeight", Value: "5"}, h, ""); got != "" {
		t.Errorf("a unit that does not run: %q", got)
	}
}

// TestHandOnAgain: the controllers of a unit that another program has switched off above it are switched on again, from the top.
func TestHandOnAgain(t *testing.T) {
	h, dir := grouptest.Drawn(t)
	s := unitStep("a.service", vnode.Storage.Standing(), 1<<20)
	on := func(path string) *group.Enable {
		t.Helper()
		e, err := New(layout.New(t.TempDir())).handOnAgain(t.Context(), s, systemd.Unit{ControlGroup: path}, h)
		grouptest.Must(t, err)
		return e
	}
	for top, above := range map[string]string{"cpu io": "cpu io memory", "cpu io memory": ""} {
		grouptest.Must(t, os.WriteFile(filepath.Join(h.V2, "cgroup.subtree_control"), []byte(top), 0o644))
		grouptest.Must(t, os.WriteFile(filepath.Join(filepath.Dir(dir), "cgroup.subtree_control"), []byte(above), 0o644))
		want := &group.Enable{Mount: h.V2, Groups: []string{"", "berth"}, Controllers: []string{"memory"}}
		if above == "" {
			want.Controllers = []string{"cpu", "io", "memory"}
		}
		if d := cmp.Diff(want, on("/berth/wn")); d != "" {
			t.Errorf("%q, %q: %s", top, above, d)
		}
		for _, path := range []string{"", "/berth/gone"} {
			if e := on(path); e != nil {
				t.Errorf("a unit in %q: %v", path, e)
			}
		}
	}
}

// TestDisabled: a unit is refused whose slice, or one above that, up to the root, keeps one of the controllers off, with a remedy that keeps off what
// else was.
func TestDisabled(t *testing.T) {
	remedy := func(err error) string {
		if no, ok := errors.AsType[*refuse.Error](err); ok {
			return no.Remedy
		}
		return ""
	}
	for slice, tt := range map[string]struct{ off, remedy string }{
		"system.slice": {"", ""},
		"a-b.slice":    {"memory pids", ""},
		"a-c.slice":    {"pids cpu", `systemctl set-property -- a-c.slice DisableControllers= DisableControllers="pids"; berth protect x.service`},
		"d-e-f.slice":  {"", `systemctl set-property -- d.slice DisableControllers=; berth protect x.service`},
	} {
		v := New(layout.New(t.TempDir()))
		root := ""
		v.look = func(_ context.Context, name string, _ ...string) (systemd.Unit, error) {
			return systemd.Unit{Properties: map[string]string{"DisableControllers": map[string]string{slice: tt.off, "d.slice": "io cpu", "-.slice": root}[name]}}, nil
		}
		err := v.refuseDisabled(t.Context(), "x.service", slice, []string{"cpu", "io"})
		if got := remedy(err); got != tt.remedy || err != nil && refuse.KindOf(err) != refuse.Cannot {
			t.Errorf("%s: %v, remedy %q, want %q", slice, err, got, tt.remedy)
		}
		root = "io"
		if err := v.refuseDisabled(t.Context(), "x.service", slice, []string{"cpu", "io"}); err == nil || tt.remedy == "" && !strings.HasPrefix(remedy(err), "systemctl set-property -- -.slice ") {
			t.Errorf("%s, and the root keeps io off: %v, remedy %q", slice, err, remedy(err))
		}
	}
}

// TestKeptTransient: systemd keeps what is set of a unit that a program asked it for elsewhere than what is set of units that have files.
func TestKeptTransient(t *testing.T) {
	v := &Services{control: t.TempDir(), transient: t.TempDir()}
	s := &systemd.Set{Unit: "run-1.scope", Properties: []systemd.Property{{Name: "CPUWeight", Value: "1000"}}}
	for _, dir := range []string{v.control, v.transient} {
		path := systemd.DropIn(dir, s.Unit, "CPUWeight")
		testkit.Must(t, os.Mkdir(filepath.Dir(path), 0o755))
		testkit.Must(t, os.WriteFile(path, []byte("[Scope]\nCPUWeight=1000\n"), 0o600))
		for _, transient := range []bool{false, true} {
			u := systemd.Unit{Transient: transient, Properties: map[string]string{"CPUWeight": "1000"}}
			if all := v.valuesOf(s, u, grouptest.V2()); all[0].Holds != (transient == (dir == v.transient)) {
				t.Errorf("transient %v, kept in %s: %+v", transient, dir, all[0])
			}
		}
		testkit.Must(t, os.RemoveAll(filepath.Dir(path)))
	}
}

// TestMovedUnit: the main process of a unit that another program has moved is brought back, with the child that went with it.
func TestMovedUnit(t *testing.T) {
	h := grouptest.Host(t)
	path, all, move := unitOfTwo(t, h, "sh")
	u := systemd.Unit{ControlGroup: "/" + path, MainPID: strconv.Itoa(all[0])}
	if r, err := returnOf(u, h); err != nil || r != nil {
		t.Fatalf("its process is in its place: %v, %v", r, err)
	}
	move(all[1], "")
	r, err := returnOf(u, h)
	if err != nil || r == nil || !strings.Contains(movedBy(r), "process "+strconv.Itoa(all[1])) {
		t.Fatalf("its child is at the top: %v, %v", r, err)
	}
	move(all[0], "")
	if r, err = returnOf(u, h); err != nil || r == nil {
		t.Fatalf("its process is at the top: %v, %v", r, err)
	}
	testkit.Must(t, r.Do(t.Context()))
	testkit.Must(t, r.Verify(t.Context()))
	for _, pid := range all {
		for _, hh := range group.Hierarchies(h) {
			if !slices.ContainsFunc([]string{"cpu", "memory", "pids"}, func(c string) bool { return slices.Contains(hh.Controllers, c) }) {
				continue
			}
			if at, err := hh.GroupOf(pid); err != nil || at != path {
				t.Errorf("process %d is in %s of %s, not in %s: %v", pid, at, hh.Title(), path, err)
			}
		}
	}
}

// TestMovedAgent: what the agent starts for its clients and nodes leaves its group on purpose, to outlive it, and is not brought back.
func TestMovedAgent(t *testing.T) {
	h := grouptest.Host(t)
	shell, err := exec.LookPath("sh")
	testkit.Must(t, err)
	agent := filepath.Join(t.TempDir(), "berthd")
	testkit.Must(t, os.Symlink(shell, agent))
	path, all, move := unitOfTwo(t, h, agent)
	u := systemd.Unit{ControlGroup: "/" + path, MainPID: strconv.Itoa(all[0])}
	move(all[1], "")
	if r, err := returnOf(u, h); err != nil || r != nil {
		t.Errorf("its child is at the top: %v, %v", r, err)
	}
	move(all[0], "")
	r, err := returnOf(u, h)
	if err != nil || r == nil || slices.ContainsFunc(r.Away, func(a group.Away) bool { return a.PID != all[0] }) {
		t.Errorf("both are at the top: %v, %v", r, err)
	}
}

// unitOfTwo starts a shell, which starts a child, in a group of their own, and returns its path, their numbers, and what moves one of them.
func unitOfTwo(t *testing.T, h host.Cgroups, shell string) (path string, all []int, move func(pid int, to string)) {
	path = grouptest.New(t, h, group.Kinds(), group.Steps)
	cmd := exec.Command(shell, "-c", "sleep 1000 & wait")
	testkit.Must(t, cmd.Start())
	family := func() []int { return proc.Family(cmd.Process.Pid) }
	t.Cleanup(func() { // before the groups are removed
		for _, pid := range family()[1:] {
			if p, err := os.FindProcess(pid); err == nil {
				_ = p.Kill()
			}
		}
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	testkit.Eventually(t, "the processes to start", func() bool { return len(family()) == 2 })
	move = func(pid int, to string) {
		for _, hh := range group.Hierarchies(h) {
			if _, err := os.Stat(filepath.Join(hh.Mount, path)); err == nil {
				testkit.Must(t, hh.Move(pid, to))
			}
		}
	}
	all = family()
	for _, pid := range all {
		move(pid, path)
	}
	return path, all, move
}
