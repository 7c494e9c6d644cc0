package shape

import (
	"os"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestParseCounts(t *testing.T) {
	text := `Inter-|   Receive                                                |  Transmit
 face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs drop fifo colls carrier compressed
    lo:  100       1    0    0    0     0          0         0      100       1    0    0    0     0       0          0
rx.eth0:  5       1    0    0    0     0          0         0       5       1    0    0    0     0       0          0
  eth0: 18446744 200    1    2    3     4          5         6 4096     20    0    0    0     0       0          0
  long:1 2 3
`
	want := []Count{{Name: "eth0", RXBytes: 18446744, RXPackets: 200, TXBytes: 4096, TXPackets: 20}}
	if diff := cmp.Diff(want, parseCounts(text)); diff != "" {
		t.Error(diff)
	}
}

func TestCountsOfThisProcess(t *testing.T) {
	if _, err := Counts(os.Getpid()); err != nil {
		t.Error(err)
	}
	if _, err := Counts(1 << 23); err == nil {
		t.Error("a process that is not there has counters")
	}
}
