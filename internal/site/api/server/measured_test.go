package server

import (
	"testing"

	"berth/test/testkit"
)

// TestMeasured runs again the tests of this package whose verdicts are stricter where a run measures: ten thousand
// nodes in 300 ms.
func TestMeasured(t *testing.T) {
	if !testkit.Measures() {
		t.Skip("measures the speed of this machine: make test-measured")
	}
	t.Run("nodes", TestTenThousandNodes)
}
