package claims_test

import (
	"testing"

	"berth/test/testkit"
)

// TestMeasured runs again the tests of this package whose verdicts are stricter where a run measures: a refusal in time
// while the cluster state or the agent does not answer.
func TestMeasured(t *testing.T) {
	if !testkit.Measures() {
		t.Skip("measures the speed of this machine: make test-measured")
	}
	t.Run("away", TestAway)
	t.Run("stale", TestStale)
}
