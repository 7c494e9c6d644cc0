package cli

import (
	"fmt"
	"io"
	"text/tabwriter"

	"berth/internal/node"
)

// printDevices writes the devices of a node.
func printDevices(out io.Writer, width int, devices []node.DeviceDetail) error {
	if len(devices) == 0 {
		return nil
	}
	fmt.Fprintln(out)
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "DEVICE\tIS\tACCESS\tHONOURED BY")
	var notes []note
	for _, d := range devices {
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
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\n", d.Path, is, orDash(d.Access), orDash(d.HonouredBy))
		if d.Unsafe != "" {
			notes = append(notes, note{d.Path, "unsafe: " + d.Unsafe})
		}
		notes = append(notes, note{d.Path, d.Note})
	}
	if err := w.Flush(); err != nil {
		return err
	}
	printNotes(out, width, notes)
	return nil
}
