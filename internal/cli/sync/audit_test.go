package sync

import (
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/cobra"

	"berth/internal/cli/act"
	"berth/internal/node"
	"berth/internal/sys/layout"
	"berth/internal/sys/refuse"
)

// TestAudit checks what is refused before berth becomes berth-sync, and how the disk is found.
func TestAudit(t *testing.T) {
	l := layout.New(t.TempDir())
	dir := filepath.Join(l.Run, "sync", "shared")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	c := Commands{act.App{
		JSON: new(bool), Open: func() *node.Berth { return node.Open(l, node.Beside{}) },
		JSONFlag: func(c *cobra.Command) *cobra.Command { return c },
	}}
	run := func(args ...string) error {
		s := c.Sync()
		s.SilenceErrors, s.SilenceUsage = true, true
		s.SetArgs(append([]string{"audit"}, args...))
		s.SetOut(io.Discard)
		return s.ExecuteContext(t.Context())
	}
	for _, tt := range []struct {
		args []string
		kind refuse.Kind
		says string
	}{
		{[]string{"none"}, refuse.NotFound, "serves no file system none"},
		{[]string{"../sync"}, refuse.Invalid, "no name"},
		{[]string{"shared"}, refuse.Cannot, "--path"},
		{[]string{"shared", "--path", "/proc"}, refuse.Invalid, ""},
	} {
		if err := run(tt.args...); err == nil || !strings.Contains(err.Error(), tt.says) || tt.says != "" && refuse.KindOf(err) != tt.kind {
			t.Errorf("berth sync audit %v: %v (kind %d), want kind %d and %q", tt.args, err, refuse.KindOf(err), tt.kind, tt.says)
		}
	}
	if err := os.WriteFile(filepath.Join(dir, "disk"), []byte("8:16\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if got, err := diskOf(dir, ""); err != nil || got != "8:16" {
		t.Errorf("the recorded disk: %q, %v", got, err)
	}
	if err := run("shared", "--for", "0s"); refuse.KindOf(err) != refuse.Invalid {
		t.Errorf("--for 0s: %v", err)
	}
	names, _ := c.fileSystems(nil, nil, "")
	if diff := cmp.Diff([]string{"shared"}, names); diff != "" {
		t.Error(diff)
	}
}
