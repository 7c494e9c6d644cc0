package inherit

import (
	"testing"

	"golang.org/x/sys/unix"
)

// TestLimitsThatStay: a hard limit that this process could not raise again is not lowered, and one that process 1 has, too, is not refused.
func TestLimitsThatStay(t *testing.T) {
	files := limit{resource: unix.RLIMIT_NOFILE, soft: hardFiles, hard: hardFiles}
	for _, c := range []struct {
		has    uint64
		raises bool
		want   uint64
	}{{1 << 20, true, hardFiles}, {1 << 20, false, 1 << 20}, {1000, true, hardFiles}, {1000, false, hardFiles}} {
		if got := files.after(unix.Rlimit{Cur: 77, Max: c.has}, c.raises); got != (unix.Rlimit{Cur: hardFiles, Max: c.want}) {
			t.Errorf("a hard limit of %d, raised: %v: %v", c.has, c.raises, got)
		}
	}
	if !firstHas(unix.RLIMIT_NOFILE, infinity) || firstHas(unix.RLIMIT_NOFILE, 0) {
		t.Error("the limit of open files of process 1 is not between 0 and infinity")
	}
}
