package machine

import (
	"testing"

	"berth/test/testkit"
)

// TestMeasured runs the tests again whose times count where a run measures.
func TestMeasured(t *testing.T) {
	if !testkit.Measures() {
		t.Skip("measures the speed of this machine: make test-measured")
	}
	t.Run("memory", TestMemory)
}
