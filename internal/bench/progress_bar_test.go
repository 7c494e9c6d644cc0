package bench

import (
	"strings"
	"testing"
	"time"

	"berth/internal/bench/bed"
)

func TestBarLine(t *testing.T) {
	got := barLine(bed.Progress{What: "write 64K x1 node", Left: 90 * time.Second}, 30*time.Second)
	if want := "[#######.......................]  25 %  1:30 left  write 64K x1 node"; got != want {
		t.Error(got)
	}
	got = barLine(bed.Progress{What: bed.LayOut, Done: 1, Total: 2}, time.Second)
	if want := "[###############...............]  50 %  lay out"; got != want {
		t.Error(got)
	}
	var b strings.Builder
	progress, done := Bar(&b)
	progress(bed.Progress{What: bed.LayOut, Done: 1, Total: 2})
	done()
	if b.String() != "\r"+got+"\x1b[K\r\x1b[K" {
		t.Errorf("on a terminal: %q", b.String())
	}
}
