package show

import (
	"fmt"
	"io"

	"berth/internal/sys/proof"
	"berth/internal/sys/text"
)

// Limits writes each limit as asked for and as read back, and the mechanism that enforces it. Notes follow the table.
func Limits(out io.Writer, width int, limits []proof.Limit) error {
	if len(limits) == 0 {
		return nil
	}
	rows := [][]string{{"LIMIT", "ASKED", "READ BACK", "HONOURED BY"}}
	var notes []text.Note
	for _, l := range limits {
		rows = append(rows, []string{l.Key, l.Asked, text.OrDash(l.ReadBack), l.By})
		notes = append(notes, text.Note{Key: l.Key, Text: l.Note})
		switch {
		case l.Holds:
		case l.Why != "":
			notes = append(notes, text.Note{Key: l.Key, Text: "DOES NOT HOLD: " + l.Why})
		case l.ReadBack != "":
			notes = append(notes, text.Note{Key: l.Key, Text: "the kernel has another value than was asked for: somebody else wrote it"})
		}
	}
	fmt.Fprintln(out)
	if err := text.Rows(out, width, rows); err != nil {
		return err
	}
	text.Notes(out, width, notes)
	return nil
}
