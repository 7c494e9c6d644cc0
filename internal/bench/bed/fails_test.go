package bed

import (
	"errors"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"berth/internal/bench/result"
	"berth/internal/bench/side"
)

func TestRealFioFails(t *testing.T) {
	needFio(t)
	_, err := side.Host(t.Context(), DiskRun{Job{Pattern: "randread", Block: 4096}, []result.Target{{Path: filepath.Join(t.TempDir(), "none"), Size: 1 << 20}}}.Command(time.Second, time.Second))
	if err == nil {
		t.Error("fio works without its file")
	}
	if _, err := side.Host(t.Context(), []string{"no-such-fio-" + t.Name(), "--version"}); !errors.Is(err, exec.ErrNotFound) {
		t.Errorf("%v", err)
	}
}
