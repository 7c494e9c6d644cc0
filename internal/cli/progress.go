package cli

import (
	"fmt"
	"os"
	"time"

	"golang.org/x/term"
)

// onTerminal reports whether standard error is a terminal, so that a person sees progress.
func (a *app) onTerminal() bool {
	f, ok := a.Err.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}

// byteProgress shows how far a copy is, on a terminal only. done erases the line.
func (a *app) byteProgress(what string) (progress func(done, total int64), done func()) {
	if !a.onTerminal() {
		return nil, func() {}
	}
	var last time.Time
	start := time.Now()
	progress = func(n, total int64) {
		if time.Since(last) < 100*time.Millisecond && n < total {
			return
		}
		last = time.Now()
		left := ""
		if n > 0 && n < total {
			left = fmt.Sprintf(", %s left", (time.Since(start) * time.Duration(total-n) / time.Duration(n)).Round(time.Second))
		}
		fmt.Fprintf(a.Err, "\r\x1b[K%s %s of %s%s", what, human(n), human(total), left)
	}
	return progress, func() { fmt.Fprint(a.Err, "\r\x1b[K") }
}
