package bench

import (
	"testing"

	"berth/test/testkit"
)

// TestMeasured runs again the tests of this package whose verdicts are stricter where a run measures: trials of 300 ms
// take that long, and a cancelled run ends at once.
func TestMeasured(t *testing.T) {
	if !testkit.Measures() {
		t.Skip("measures the speed of this machine: make test-measured")
	}
	t.Run("trials", TestRealNullRun)
	t.Run("cancelled", TestRealCancel)
}
