package agent

import (
	"testing"

	"berth/test/testkit"
)

// TestMeasured runs again the tests of this package whose verdicts are stricter where a run measures: caught up within
// 5 s after the store was away.
func TestMeasured(t *testing.T) {
	if !testkit.Measures() {
		t.Skip("measures the speed of this machine: make test-measured")
	}
	t.Run("tells", TestTells)
}
