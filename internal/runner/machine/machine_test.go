package machine

import (
	"testing"

	"berth/internal/runner"
)

// TestReport: an emulator that is not installed is no fault of the host.
func TestReport(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	if got := (Family{}).Report(t.Context(), runner.Trial{}); len(got) != 1 || got[0].Name != Program || got[0].Path != "" || got[0].Err != nil {
		t.Errorf("%+v", got)
	}
}
