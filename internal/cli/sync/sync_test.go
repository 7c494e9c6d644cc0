package sync

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"berth/internal/cli/act"
	"berth/internal/site/iosync"
	"berth/internal/sys/proof"
)

// TestTable: what nobody holds is said below the table, with whose it is; each line says since when.
func TestTable(t *testing.T) {
	var out bytes.Buffer
	since := time.Date(2026, 11, 27, 10, 0, 0, 0, time.Local)
	all := []iosync.Held{
		{Filesystem: "away", Failed: "no such interface", Since: since},
		{
			Wish: iosync.Wish{Node: "n", Host: "h", Strays: []string{"network eth1 is of mode nat"}}, Filesystem: "shared", Missing: "writes through the page cache", Since: since,
			Limits: []proof.Limit{{Key: "io.shared.read.rate", Asked: "10MB/s", ReadBack: "10MB/s", By: "blkio.throttle", Holds: true}},
		},
	}
	if err := (Commands{act.App{Out: &out}}).table(all); err != nil {
		t.Fatal(err)
	}
	got := strings.Join(strings.Fields(out.String()), " ")
	for _, want := range []string{
		"away - - - - - - 2026-11-27 10:00:00", "shared n h io.shared.read.rate 10MB/s 10MB/s blkio.throttle 2026-11-27 10:00:00",
		"away: not enforced: no such interface", "n: not enforced: network eth1 is of mode nat", "shared: not enforced: writes through the page cache",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("%q is not in\n%s", want, out.String())
		}
	}
}
