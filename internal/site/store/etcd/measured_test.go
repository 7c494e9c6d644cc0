package etcd_test

import (
	"testing"

	"berth/test/testkit"
)

// TestMeasured runs again the tests of this package whose verdicts are stricter where a run measures: each call fails in
// time without etcd, and a watch has caught up within 5 s.
func TestMeasured(t *testing.T) {
	if !testkit.Measures() {
		t.Skip("measures the speed of this machine: make test-measured")
	}
	t.Run("Debian", TestDebian)
	t.Run("current", TestCurrent)
}
