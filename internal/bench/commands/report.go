package commands

import (
	"errors"
	"io"

	"github.com/spf13/cobra"

	"berth/internal/bench/report"
	"berth/internal/sys/refuse"
)

// reportFiles are the flags that name the files of a report.
type reportFiles struct{ html, csv string }

func (f *reportFiles) add(c *cobra.Command) {
	c.Flags().StringVar(&f.html, "html", "", "write a page to `FILE`, with tables, plots and the raw data in it; - is standard output")
	c.Flags().StringVar(&f.csv, "csv", "", "write a table to `FILE`, a line a measure, row and arm; - is standard output")
}

func (a App) reportCmd() *cobra.Command {
	var f reportFiles
	c := &cobra.Command{
		Use: "report FILE", Short: "show what a benchmark has measured, again",
		Long: `Show the JSON of berth bench run, disk, net or isolation: as text, as one page
that needs no network and no script (--html), as a table for spreadsheets
(--csv).
FILE - is standard input; one that is compressed by gzip is read too.
share/doc/berth/report.md says how a page is read and names the columns of the
table.`,
		Example: `  berth bench report result.json
  berth bench report result.json --html result.html --csv result.csv`,
		Args: cobra.ExactArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			r, err := a.readReport(args[0])
			if err != nil {
				return err
			}
			return a.showReport(r, f)
		},
	}
	f.add(c)
	return c
}

func (a App) readReport(file string) (*report.Report, error) {
	if file == "-" {
		return report.Read(a.In, "berth-bench")
	}
	return report.Open(file)
}

// showReport writes the files, and prints the text unless a file is standard output.
func (a App) showReport(r *report.Report, f reportFiles) error {
	if f.html == "-" && f.csv == "-" {
		return refuse.Invalidf("--html - and --csv -: there is one standard output")
	}
	if err := errors.Join(checkOutput(f.html), checkOutput(f.csv)); err != nil {
		return err
	}
	for _, form := range []struct {
		file  string
		write func(io.Writer) error
	}{{f.html, r.HTML}, {f.csv, r.CSV}} {
		if form.file == "" {
			continue
		}
		var err error
		if form.file == "-" {
			err = form.write(a.Out)
		} else {
			err = writeFile(form.file, form.write)
		}
		if err != nil {
			return err
		}
	}
	if f.html == "-" || f.csv == "-" {
		return nil
	}
	return r.Text(a.Out)
}
