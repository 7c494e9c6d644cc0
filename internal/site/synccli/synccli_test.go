package synccli

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"berth/internal/site/iosync/probe"
	"berth/test/testkit"
)

func run(t *testing.T, args ...string) (code int, out, errs string) {
	t.Helper()
	var o, e strings.Builder
	code = Main(t.Context(), args, &o, &e)
	return code, o.String(), e.String()
}

func TestUsage(t *testing.T) {
	for _, tt := range []struct {
		args string
		code int
		says string
	}{
		{"", 0, "audit"},
		{"audit --help", 0, "--disk"},
		{"audit", 2, "8:16"},
		{"audit --disk 7:0", 2, "--dir"},
		{"audit x --dir /none --disk 7:0", 2, "audit"},
		{"audit --dir /none --disk 7", 2, "8:16"},
		{"audit --dir /none --disk 7:0x", 2, "8:16"},
		{"audit --dir /none --disk 7:0 --for 0s", 2, "30s"},
		{"audit --dir /none --disk 7:0 --for 1s", 4, "serves"},
	} {
		code, out, errs := run(t, strings.Fields(tt.args)...)
		if code != tt.code || !strings.Contains(out+errs, tt.says) {
			t.Errorf("berth-sync %s: exit code %d, want %d and %q: %s%s", tt.args, code, tt.code, tt.says, out, errs)
		}
	}
}

// TestAudit runs one in this kernel, for a disk that nobody uses.
func TestAudit(t *testing.T) {
	testkit.NeedsRoot(t)
	if _, err := os.Stat("/sys/kernel/btf/vmlinux"); err != nil {
		t.Skip("needs a kernel with BTF: there is no /sys/kernel/btf/vmlinux")
	}
	dir := filepath.Join(t.TempDir(), "shared")
	if err := os.MkdirAll(filepath.Join(dir, "addresses"), 0o755); err != nil {
		t.Fatal(err)
	}
	args := []string{"audit", "--dir", dir, "--disk", "4095:7", "--for", "10ms"}
	code, out, errs := run(t, args...)
	if code != 0 || !strings.Contains(out, "shared on ") || !strings.Contains(out, "disk 4095:7") || !strings.Contains(out, "0 B leaked") {
		t.Errorf("exit code %d: %s%s", code, out, errs)
	}
	code, out, errs = run(t, append(args, "--json")...)
	var r probe.Result
	if err := json.Unmarshal([]byte(out), &r); code != 0 || err != nil || r.FileSystem != "shared" || r.Ways.Receive == "" {
		t.Errorf("exit code %d, %v: %s%s", code, err, out, errs)
	}
}
