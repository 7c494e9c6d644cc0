package main

import (
	"errors"
	"fmt"
	"strings"

	"berth/internal/bench/report"
	"berth/internal/bench/result"
	"berth/internal/bench/stat"
)

// legend is the text below the table of the disk in docs/cost.md.
const legend = `
All runs that ` + "`make readme-disk`" + ` makes are shown, none is chosen: their plan and seeds are fixed in the script ([data](evidence/README.md)). *Host twice* is the host against
itself: how much of a difference is noise.
`

// block returns the text between the marks: the table and its legend.
func block(table string) string { return "```\n" + table + "```\n" + legend }

// disks reads the reports of berth bench disk. It returns an error if there are none, or if they have different plans.
func disks(files []string) ([]run, error) {
	var runs []run
	for _, f := range files {
		r, err := read(f)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", f, err)
		}
		runs = append(runs, r)
	}
	if len(runs) == 0 {
		return nil, errors.New("no reports are named")
	}
	first := runs[0]
	for i, r := range runs {
		if len(r.rows) != len(first.rows) || r.MarginPct != first.MarginPct || r.Pairs != first.Pairs || r.RunMillis != first.RunMillis {
			return nil, errors.New("the runs are not of one plan")
		}
		for j, row := range r.rows {
			if row.Name != first.rows[j].Name || of(&row, result.Node) == nil || len(row.Arms) == 0 {
				return nil, fmt.Errorf("run %d has no result for %s", i+1, first.rows[j].Name)
			}
		}
	}
	return runs, nil
}

// table formats each row of all runs, in lines of at most 80 columns.
func table(runs []run) string {
	var b strings.Builder
	first := runs[0]
	var seeds []string
	for _, r := range runs {
		seeds = append(seeds, fmt.Sprint(r.Seed))
	}
	m := first.Machine
	fmt.Fprintf(&b, "Disk: node against host, %d runs, %d pairs a row, %d ms a trial, direct I/O\n", len(runs), first.Pairs, first.RunMillis)
	fmt.Fprintf(&b, "Linux %s, %d CPUs, %s; seeds %s; margin %g %%\n\n", m.Kernel, m.Cores, first.Tools[0].Version, strings.Join(seeds, ", "), first.MarginPct)
	const line = "%-13s%-2s%7s  %-22s %-22s %s\n"
	fmt.Fprintf(&b, line, "run:", "", "IOPS", "% lost, node (95 %)", "host twice (95 %)", "verdict")
	for i, row := range first.rows {
		name := row.Name
		for j, r := range runs {
			got := r.rows[i]
			node, null := of(&got, result.Node), of(&got, result.Null)
			fmt.Fprintf(&b, line, name, fmt.Sprint(j+1), fmt.Sprintf("%.0f", got.Arms[0].Values["iops"]), lost(node), lost(null), node.Verdict)
			name = ""
		}
	}
	return b.String()
}

// run is one run of berth bench disk.
type run struct {
	*result.Study
	result.Design
	rows []result.Row
}

func read(path string) (run, error) {
	r, err := report.Open(path)
	if err != nil {
		return run{}, err
	}
	s := run{Study: r.Study}
	for _, e := range s.Experiments {
		s.Design, s.rows = e.Design, append(s.rows, e.Rows...)
	}
	if s.Partial || len(s.rows) == 0 || of(&s.rows[0], result.Node) == nil || len(s.Tools) == 0 {
		return run{}, errors.New("want a whole report of berth bench disk")
	}
	return s, nil
}

// of returns the comparison of an arm's requests a second with the host's.
func of(r *result.Row, arm string) *stat.Comparison {
	for _, c := range r.Compared {
		if c.Arm == arm && c.Measure == "iops" {
			return c.Penalty
		}
	}
	return nil
}

func lost(c *stat.Comparison) string {
	if c == nil {
		return "-"
	}
	text := fmt.Sprintf("%+.1f", c.PenaltyPct)
	if c.CI95Pct != nil {
		text += fmt.Sprintf(" (%+.1f..%+.1f)", c.CI95Pct[0], c.CI95Pct[1])
	}
	return text
}
