package show

import (
	"fmt"
	"io"
	"text/tabwriter"

	"berth/internal/node"
	"berth/internal/sys/text"
)

// devices writes the devices of a node.
func devices(out io.Writer, width int, all []node.Device) error {
	if len(all) == 0 {
		return nil
	}
	fmt.Fprintln(out)
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "DEVICE\tIS\tACCESS\tHONOURED BY")
	var notes []text.Note
	for _, d := range all {
		is := d.Source
		if d.Number != "" {
			is = d.Number + " " + d.Source
		}
		switch {
		case d.Gone:
			is += " (gone)"
		case d.Unsafe != "":
			is += " (unsafe)"
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\n", d.Path, is, text.OrDash(d.Access), text.OrDash(d.HonouredBy))
		if d.Unsafe != "" {
			notes = append(notes, text.Note{Key: d.Path, Text: "unsafe: " + d.Unsafe})
		}
		notes = append(notes, text.Note{Key: d.Path, Text: d.Note})
	}
	if err := w.Flush(); err != nil {
		return err
	}
	text.Notes(out, width, notes)
	return nil
}
