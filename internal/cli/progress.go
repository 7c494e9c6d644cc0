package cli

import (
	"fmt"
	"os"
	"time"

	"golang.org/x/term"

	"berth/internal/sys/text"
)

// onTerminal reports whether standard error is a terminal, so that a person sees progress.
func (a *app) onTerminal() bool {
	f, ok := text.Raw(a.Err).(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}

// eraseLine erases the line of the terminal in which progress is told.
func (a *app) eraseLine() { fmt.Fprint(text.Raw(a.Err), "\r\x1b[K") }

// byteProgress shows how far a copy is: ten times a second on a terminal, else in a line a minute. done erases the
// terminal's line.
func (a *app) byteProgress(what string) (progress func(done, total int64), done func()) {
	every, end := time.Minute, "\n"
	begin, done := func() { fmt.Fprint(a.Err, "berth: ") }, func() {}
	if a.onTerminal() {
		every, end = 100*time.Millisecond, ""
		begin, done = a.eraseLine, a.eraseLine
	}
	start := time.Now()
	last, first := start, int64(-1) // the first n: what an earlier pull has left costs no time now
	return func(n, total int64) {
		if first < 0 || n < first {
			first = n
		}
		if time.Since(last) < every {
			return
		}
		last = time.Now()
		left := ""
		if n > first && n < total {
			left = fmt.Sprintf(", %s left", time.Duration(float64(time.Since(start))*float64(total-n)/float64(n-first)).Round(time.Second))
		}
		begin()
		fmt.Fprintf(a.Err, "%s %s of %s%s%s", what, text.Human(n), text.Human(total), left, end)
	}, done
}
