package protect

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"berth/internal/host/group"
	"berth/internal/host/group/grouptest"
	"berth/internal/limit/weight"
	"berth/internal/sys/layout"
	"berth/internal/sys/proof"
	"berth/internal/sys/step"
	"berth/test/testkit"
)

// TestSwitchedOff: a process whose group has lost a controller, because another program has switched it off above, is not shown as
// protected, and the controller is switched on before the weights are written again.
func TestSwitchedOff(t *testing.T) {
	_, dir := grouptest.Drawn(t)
	above := filepath.Join(filepath.Dir(dir), "cgroup.subtree_control")
	c := &weight.Class{Name: "berth/wn"}
	for key, file := range map[string]string{"class.cpu": "cpu.weight", "class.io": "io.weight"} {
		testkit.Must(t, os.WriteFile(filepath.Join(dir, file), nil, 0o600))
		c.Values = append(c.Values, weight.ClassValue{
			Limit: proof.Limit{Key: key, Asked: "weight 1000", By: file}, Write: group.Write{File: filepath.Join(dir, file), Value: "1000", None: "100"},
		})
	}
	boot, err := step.BootID()
	testkit.Must(t, err)
	j, err := create(filepath.Join(t.TempDir(), "journal"), "7", boot)
	testkit.Must(t, err)
	testkit.Must(t, j.Do(t.Context(), c))
	testkit.Must(t, os.WriteFile(above, []byte("cpu io memory"), 0o600))
	v := New(layout.New(t.TempDir()))
	look := func() (kinds, lost []string) {
		t.Helper()
		testkit.Must(t, v.eachLost(t.Context(), j, func(s step.Step) error { kinds = append(kinds, s.Kind()); return nil }))
		p := &Service{Values: c.Show()}
		p.lose("")
		return kinds, p.Lost
	}
	if kinds, lost := look(); len(kinds)+len(lost) > 0 {
		t.Errorf("it has all: %q, %q", kinds, lost)
	}
	testkit.Must(t, os.WriteFile(above, []byte("io memory"), 0o600))
	testkit.Must(t, os.Remove(filepath.Join(dir, "cpu.weight")))
	kinds, lost := look()
	if diff := cmp.Diff([]string{"cgroup.enable", "cgroup.class"}, kinds); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff([]string{"cpu: the cgroup " + filepath.Dir(dir) + " hands cpu on no more: somebody else switched it off"}, lost); diff != "" {
		t.Error(diff)
	}
	e, err := c.Disabled()
	testkit.Must(t, err)
	testkit.Must(t, e.Do(t.Context()))
	if got := grouptest.Text(t, above); got != "+cpu" { // a plain file keeps the written text
		t.Errorf("written: %q", got)
	}
}
