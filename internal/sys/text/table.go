package text

import (
	"io"
	"strings"
	"unicode/utf8"
)

// leastColumn is the least width of the first column of a table.
const leastColumn = 16

// Rows writes a table. If it would be wider than width (0: no bound), the first column shrinks, and a first cell
// that is too long for it is printed on a line of its own above the other cells.
func Rows(out io.Writer, width int, rows [][]string) error {
	const gap = 2
	widest := make([]int, len(rows[0]))
	for _, r := range rows {
		for i, cell := range r {
			widest[i] = max(widest[i], utf8.RuneCountInString(cell))
		}
	}
	total := -gap
	for _, n := range widest {
		total += n + gap
	}
	first := widest[0]
	if width > 0 && total > width {
		first = max(first-(total-width), min(first, leastColumn))
	}
	var b strings.Builder
	for _, r := range rows {
		line := Pad(r[0], first)
		if utf8.RuneCountInString(r[0]) > first {
			b.WriteString(r[0] + "\n")
			line = Pad("", first)
		}
		for i, cell := range r[1:] {
			line += strings.Repeat(" ", gap) + Pad(cell, widest[i+1])
		}
		b.WriteString(strings.TrimRight(line, " ") + "\n")
	}
	_, err := io.WriteString(out, b.String())
	return err
}

// Pad adds spaces to s up to a width.
func Pad(s string, width int) string {
	return s + strings.Repeat(" ", max(width-utf8.RuneCountInString(s), 0))
}
