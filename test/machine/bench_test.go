package machine

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"berth/internal/sys/refuse"
	"berth/test/env"
	"berth/test/loop"
)

// A benchmark whose image has no program that measures is refused before anything is measured: the disk has not been written to, and
// neither a machine nor a report is left.
func TestBenchTriesItsMachine(t *testing.T) {
	needs(t)
	const size = 4 << 20
	disk := loop.ForTest(t, size)
	out := filepath.Join(t.TempDir(), "report")
	_, said, code := env.Try(bench.Command("bench", "run", "fio-b", "--device", disk, "--destroy-data", "--out", out,
		"--machine", "image="+bench.image+",kernel="+bench.kernel+",cpus=1,memory=256MiB"))
	if code != int(refuse.Cannot) || !strings.Contains(said, "fio does not run in the arm machine") {
		t.Errorf("exit %d: %s", code, said)
	}
	if _, err := os.Stat(out); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a report: %v", err)
	}
	if text, err := os.ReadFile(disk); err != nil || !bytes.Equal(text, make([]byte, size)) {
		t.Errorf("the disk was written to: %v", err)
	}
	if nodes := must(t, "ls"); strings.Contains(nodes, "bench-") {
		t.Errorf("left: %s", nodes)
	}
}
