package cli

import (
	"fmt"
	"io"
	"strings"
	"unicode/utf8"

	"berth/internal/cgroup"
)

// printLimits prints each limit as asked for, as read back, and what honours it. Notes follow the table.
func printLimits(out io.Writer, width int, limits []cgroup.Shown) error {
	if len(limits) == 0 {
		return nil
	}
	rows := [][]string{{"LIMIT", "ASKED", "READ BACK", "HONOURED BY"}}
	var notes []note
	for _, l := range limits {
		rows = append(rows, []string{l.Key, l.Asked, orDash(l.ReadBack), l.HonouredBy})
		notes = append(notes, note{l.Key, l.Note})
		if l.ReadBack != "" && !l.Holds {
			notes = append(notes, note{l.Key, "the kernel has another value than was asked for: somebody else wrote it"})
		}
	}
	fmt.Fprintln(out)
	if err := printRows(out, width, rows); err != nil {
		return err
	}
	printNotes(out, width, notes)
	return nil
}

// leastColumn is the least width of the first column of a table.
const leastColumn = 16

// printRows prints a table. If it would be wider than width (0: no bound), the first column shrinks, and a first cell
// that is too long for it is printed on a line of its own above the other cells.
func printRows(out io.Writer, width int, rows [][]string) error {
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
		line := pad(r[0], first)
		if utf8.RuneCountInString(r[0]) > first {
			b.WriteString(r[0] + "\n")
			line = pad("", first)
		}
		for i, cell := range r[1:] {
			line += strings.Repeat(" ", gap) + pad(cell, widest[i+1])
		}
		b.WriteString(strings.TrimRight(line, " ") + "\n")
	}
	_, err := io.WriteString(out, b.String())
	return err
}

// heldBack says how often and how long the limits held a node back since it started; "" if they did not.
func heldBack(u *cgroup.Usage) string {
	if u == nil {
		return ""
	}
	var all []string
	if u.Throttled != nil && *u.Throttled > 0 {
		all = append(all, fmt.Sprintf("%.1f s by cpu.max", u.Throttled.Seconds()))
	}
	times := func(n *int64, key string) {
		if n != nil && *n > 0 {
			all = append(all, count(int(*n), "time")+" by "+key)
		}
	}
	times(u.AtHigh, "memory.high")
	times(u.AtLimit, "memory.max")
	if u.Reclaims != nil && *u.Reclaims > 0 {
		all = append(all, human(*u.Reclaims)+" of memory taken back")
	}
	if u.OOMKills != nil && *u.OOMKills > 0 {
		all = append(all, count(int(*u.OOMKills), "kill")+" for lack of memory")
	}
	return strings.Join(all, ", ")
}
