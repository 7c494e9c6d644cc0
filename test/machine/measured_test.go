package machine

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"berth/test/testkit"
)

// TestMeasured runs the tests again whose times count where a run measures, and those that only measure.
func TestMeasured(t *testing.T) {
	if !testkit.Measures() {
		t.Skip("measures the speed of this machine: make test-measured")
	}
	t.Run("memory", TestMemory)
	t.Run("starts", starts)
}

// starts measures how long it takes from apply until a command has run in the machine: the median of five.
func starts(t *testing.T) {
	needs(t)
	small, second := spec(t, "m10", ""), spec(t, "m11", "")
	t.Run("busybox", func(t *testing.T) { inTime(t, 8*time.Second, small) })
	t.Run("two at once", func(t *testing.T) { inTime(t, 30*time.Second, small, second) })
	t.Run("debian", func(t *testing.T) { inTime(t, 15*time.Second, debian(t)) })
}

// inTime starts the machines of these specs at once, five times.
func inTime(t *testing.T, most time.Duration, files ...string) {
	t.Helper()
	took := make([]time.Duration, 5)
	for round := range took {
		began := time.Now()
		atOnce(len(files), func(i int) {
			name := strings.TrimSuffix(filepath.Base(files[i]), ".yaml")
			for _, args := range [][]string{{"apply", "-f", files[i]}, {"exec", name, "true"}} {
				if out, said, code := bench.Try(args...); code != 0 {
					t.Errorf("%q: exit code %d: %s%s", args, code, out, said)
				}
			}
		})
		took[round] = time.Since(began).Round(10 * time.Millisecond)
		if t.Failed() {
			return
		}
		testkit.Must(t, bench.Clear())
	}
	slices.Sort(took)
	t.Logf("from apply until a command has run: %v", took)
	if median := took[len(took)/2]; median > most {
		t.Errorf("from apply until a command has run it takes %s, want %s at most", median, most)
	}
}

// debian writes the spec of a machine with an image of Debian's packages.
func debian(t *testing.T) string {
	t.Helper()
	image := filepath.Join(bench.Dir(), "debian.erofs")
	for _, args := range [][]string{{"image", "build", "debian", "--name", "debian"}, {"image", "pack", "debian", "-o", image}} {
		if said, err := bench.Command(args...).CombinedOutput(); err != nil {
			t.Fatalf("%q: %v: %s", args, err, said)
		}
	}
	file := spec(t, "m12", "")
	text, err := os.ReadFile(file)
	testkit.Must(t, err)
	testkit.Must(t, os.WriteFile(file, []byte(strings.Replace(string(text), bench.image, image, 1)), 0o600))
	return file
}
