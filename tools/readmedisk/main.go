// Command readmedisk makes README's table of the disk performance lost in a node, from the runs that scripts/readme-disk
// kept. The table shows all of them.
//
//	readmedisk [-write README.md] FILE.json…
package main

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"strings"

	"berth/internal/bench"
	"berth/tools/marks"
)

// mark is the name of the marks around the table in README.md.
const mark = "readme-disk"

// legend is the text below the table.
const legend = `
All runs that ` + "`make readme-disk`" + ` makes are shown, none is chosen: their plan and seeds are fixed in the script ([data](docs/evidence/README.md)). *Host twice* is the host against
itself: how much of a difference is noise.
`

func main() {
	readme := flag.String("write", "", "put the table into this `FILE`, between its marks")
	flag.Parse()
	if err := run(*readme, flag.Args()); err != nil {
		fmt.Fprintln(os.Stderr, "readmedisk:", err)
		os.Exit(1)
	}
}

func run(readme string, files []string) error {
	text, err := table(files)
	if err != nil {
		return err
	}
	fmt.Print(text)
	if readme == "" {
		return nil
	}
	return marks.Write(readme, mark, block(text))
}

// block returns the text between the marks: the table and its legend.
func block(table string) string { return "```\n" + table + "```\n" + legend }

// table formats each row of all runs, in lines of at most 80 columns. It returns an error if the runs have different plans.
func table(files []string) (string, error) {
	var runs []bench.Report
	for _, f := range files {
		text, err := os.ReadFile(f)
		if err != nil {
			return "", err
		}
		var r bench.Report
		if err := json.Unmarshal(text, &r); err != nil {
			return "", fmt.Errorf("%s: %w", f, err)
		}
		if r.Format != bench.Format || r.Partial || r.Node == nil || len(r.Rows) == 0 {
			return "", fmt.Errorf("%s: want a whole report of berth bench disk", f)
		}
		runs = append(runs, r)
	}
	if len(runs) == 0 {
		return "", errors.New("no reports are named")
	}
	var b strings.Builder
	first := runs[0]
	var seeds []string
	for _, r := range runs {
		if len(r.Rows) != len(first.Rows) || r.MarginPct != first.MarginPct || r.Pairs != first.Pairs || r.RunMillis != first.RunMillis {
			return "", errors.New("the runs are not of one plan")
		}
		seeds = append(seeds, fmt.Sprint(r.Seed))
	}
	m := first.Machine
	fmt.Fprintf(&b, "Disk: node against host, %d runs, %d pairs a row, %d ms a trial, direct I/O\n", len(runs), first.Pairs, first.RunMillis)
	fmt.Fprintf(&b, "Linux %s, %d CPUs, %s; seeds %s; margin %g %%\n\n", m.Kernel, m.Cores, first.Fio, strings.Join(seeds, ", "), first.MarginPct)
	const line = "%-13s%-2s%7s  %-22s %-22s %s\n"
	fmt.Fprintf(&b, line, "run:", "", "IOPS", "% lost, node (95 %)", "host twice (95 %)", "verdict")
	for i, row := range first.Rows {
		name := row.Name
		for j, r := range runs {
			got := r.Rows[i]
			if got.Name != row.Name || got.Penalty == nil || got.Host == nil {
				return "", fmt.Errorf("run %d has no result for %s", j+1, row.Name)
			}
			fmt.Fprintf(&b, line, name, fmt.Sprint(j+1), fmt.Sprintf("%.0f", got.Host.IOPS), lost(got.Penalty), lost(got.NullComp), got.Penalty.Verdict)
			name = ""
		}
	}
	return b.String(), nil
}

func lost(c *bench.Comparison) string {
	if c == nil {
		return "-"
	}
	text := fmt.Sprintf("%+.1f", c.PenaltyPct)
	if c.CI95Pct != nil {
		text += fmt.Sprintf(" (%+.1f..%+.1f)", c.CI95Pct[0], c.CI95Pct[1])
	}
	return text
}
