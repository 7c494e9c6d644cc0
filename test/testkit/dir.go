package testkit

import (
	"os"
	"testing"
)

// Dir makes a folder that is removed when the test ends, below a folder ("": that of temporary files; /var/tmp is on a disk). Nodes, whose
// users have no rights on the host, reach what is in it, as they do not with t.TempDir; and its name is short enough for a socket in it.
func Dir(t testing.TB, below string) string {
	t.Helper()
	dir, err := os.MkdirTemp(below, "berth-test-")
	Must(t, err)
	t.Cleanup(func() {
		if !Happens(func() bool { err = os.RemoveAll(dir); return err == nil }) { // a process that ends may write meanwhile
			t.Errorf("TempDir RemoveAll cleanup: %v", err) // the words of t.TempDir: tools/testrun knows them
		}
	})
	Must(t, os.Chmod(dir, 0o755)) //nolint:gosec // nodes pass
	return dir
}
