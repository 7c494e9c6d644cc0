package bench

import (
	"fmt"
	"io"
	"strings"
	"time"

	"berth/internal/bench/bed"
)

// Bar returns a progress function that keeps one line of a terminal up to date: how much of the time has passed and
// how much is left. done erases the line. Give it a terminal only.
func Bar(w io.Writer) (progress func(bed.Progress), done func()) {
	start := time.Now()
	progress = func(p bed.Progress) { fmt.Fprint(w, "\r"+barLine(p, time.Since(start))+"\x1b[K") }
	return progress, func() { fmt.Fprint(w, "\r\x1b[K") }
}

// barLine is at most 79 columns wide: what does not fit is cut off.
func barLine(p bed.Progress, used time.Duration) string {
	width := 30
	if p.SoFar != "" {
		width = 8
	}
	part := 0.0
	switch {
	case p.What == bed.LayOut && p.Total > 0:
		part = float64(p.Done) / float64(p.Total)
	case used+p.Left > 0:
		part = used.Seconds() / (used + p.Left).Seconds()
	}
	full := min(int(part*float64(width)), width)
	line := fmt.Sprintf("[%s%s] %3.0f %%", strings.Repeat("#", full), strings.Repeat(".", width-full), 100*part)
	if p.What != bed.LayOut {
		left := int(p.Left.Round(time.Second).Seconds())
		line += fmt.Sprintf("  %d:%02d left", left/60, left%60)
	}
	line += "  " + p.What
	if p.SoFar != "" {
		line += ": " + p.SoFar
	}
	return string([]rune(line)[:min(len([]rune(line)), 79)])
}
