package gateway_test

import (
	"testing"

	"berth/test/testkit"
)

// TestMeasured runs again the tests of this package whose verdicts are stricter where a run measures: 20,000 files in
// a folder, and a helper that is replaced within 5 s.
func TestMeasured(t *testing.T) {
	if !testkit.Measures() {
		t.Skip("measures the speed of this machine: make test-measured")
	}
	t.Run("bind", TestBind)
	t.Run("sshfs", TestSSHFS)
	t.Run("sshfs direct", TestSSHFSDirect)
}
