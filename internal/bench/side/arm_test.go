package side

import (
	"fmt"
	"os"
	"os/exec"
	"testing"

	"berth/test/testkit"
)

// A command of the host arm does not outlive a Berth that is killed.
func TestRealKilled(t *testing.T) {
	seconds := fmt.Sprintf("60.%d", os.Getpid()) // tells this test's sleep from others
	if _, err := exec.LookPath("pgrep"); err != nil {
		t.Skip("pgrep is not installed: apt-get install procps")
	}
	if s := os.Getenv("BENCH_TEST_SLEEP"); s != "" {
		_, _ = Host(t.Context(), []string{"sleep", s})
		return
	}
	berth := testkit.Again(t, "TestRealKilled", "BENCH_TEST_SLEEP="+seconds)
	if err := berth.Start(); err != nil {
		t.Fatal(err)
	}
	running := func() bool { return exec.Command("pgrep", "-fx", "sleep "+seconds).Run() == nil }
	if !testkit.Happens(running) {
		t.Error("the command did not start")
	}
	if err := berth.Process.Kill(); err != nil {
		t.Error(err)
	}
	_ = berth.Wait()
	if !testkit.Happens(func() bool { return !running() }) {
		t.Error("the command outlives its parent")
	}
}
