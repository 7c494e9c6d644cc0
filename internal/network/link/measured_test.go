package link

import (
	"testing"

	"berth/test/testkit"
)

// TestMeasured runs again the tests of this package whose verdicts are stricter where a run measures: rates within
// 3 %, nearly everything for a high priority, and shares of equals.
func TestMeasured(t *testing.T) {
	if !testkit.Measures() {
		t.Skip("measures the speed of this machine: make test-measured")
	}
	t.Run("rates", TestRateIsAccurate)
	t.Run("datagrams", TestRateOfDatagrams)
	t.Run("changes", TestRateFollows)
	t.Run("priorities", TestPriority)
}
