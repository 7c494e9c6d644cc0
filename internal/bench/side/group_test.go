package side

import (
	"context"
	"path/filepath"
	"strings"
	"testing"
)

// The command runs in the group, and its arguments arrive as they are.
func TestInGroups(t *testing.T) {
	procs := filepath.Join(t.TempDir(), "cgroup.procs") // a plain file stands for the kernel's
	out, err := InGroups(procs)(t.Context(), []string{"sh", "-c", `cat "$0"; echo $$ "$1"`, procs, `a  "b" $c`})
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(string(out), "\n")
	if want := lines[0] + ` a  "b" $c`; len(lines) != 3 || lines[1] != want {
		t.Errorf("%q: not the process that joined, or not its arguments", out)
	}
	if _, err := InGroups(filepath.Join(t.TempDir(), "gone", "cgroup.procs"))(t.Context(), []string{"true"}); err == nil {
		t.Error("the command runs outside its group")
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := InGroups(procs)(ctx, []string{"sleep", "10"}); err == nil {
		t.Error("a cancelled command succeeds")
	}
}
