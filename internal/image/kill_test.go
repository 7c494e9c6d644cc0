package image

import (
	"fmt"
	"os"
	"testing"

	"berth/internal/image/imagetest"
	"berth/internal/sys/layout"
	"berth/test/testkit"
)

// TestImportKilled kills an import with SIGKILL while a layer is half unpacked. Sweep must remove everything of it, and
// the next import must work. The test runs itself as the process to kill.
func TestImportKilled(t *testing.T) {
	if root, archive := os.Getenv("BERTH_TEST_ROOT"), os.Getenv("BERTH_TEST_ARCHIVE"); root != "" {
		_, err := Open(layout.New(root)).Import(t.Context(), archive, As{Name: "x"}, func(done, total int64) {
			if done > total/2 {
				fmt.Println("half")
				select {}
			}
		})
		t.Fatal("not killed: ", err)
	}
	testkit.NeedsRoot(t)
	root := t.TempDir()
	s := Open(layout.New(root))
	archive := imagetest.Busybox(t)
	cmd := testkit.Again(t, "TestImportKilled", "BERTH_TEST_ROOT="+root, "BERTH_TEST_ARCHIVE="+archive)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	word := make([]byte, 4)
	_, readErr := out.Read(word)
	if err := cmd.Process.Kill(); err != nil {
		t.Error(err)
	}
	_ = cmd.Wait() // killed
	if readErr != nil || string(word) != "half" {
		t.Fatalf("the import said %q, %v", word, readErr)
	}
	if left, _ := os.ReadDir(s.tmp()); len(left) == 0 {
		t.Error("killed too late: nothing was half done")
	}
	if err := s.Sweep(t.Context()); err != nil {
		t.Error(err)
	}
	for _, d := range []string{s.tmp(), s.layers(), s.records()} {
		if left, _ := os.ReadDir(d); len(left) > 0 {
			t.Errorf("left in %s: %v", d, left)
		}
	}
	if _, err := s.Import(t.Context(), archive, As{Name: "x"}, nil); err != nil {
		t.Error(err)
	}
}
