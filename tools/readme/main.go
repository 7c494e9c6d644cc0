// Command readme writes the figures that README shows, and the table of the disk in docs/cost.md, from the results that are
// kept in docs/evidence. It measures nothing.
//
//	readme    in the root of the tree
package main

import (
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"

	"berth/internal/bench/report"
	"berth/internal/bench/result"
	"berth/internal/bench/stat"
	"berth/test/lab/headline"
	"berth/tools/marks"
)

func main() {
	if err := write("."); err != nil {
		fmt.Fprintln(os.Stderr, "readme:", err)
		os.Exit(1)
	}
}

// place is a part of a document that is made from data: the text between the marks of that name.
type place struct{ file, mark, text string }

// write puts all places of the tree below root into their documents.
func write(root string) error {
	all, err := places(root)
	if err != nil {
		return err
	}
	for _, p := range all {
		if err := marks.Write(filepath.Join(root, p.file), p.mark, p.text); err != nil {
			return err
		}
	}
	return nil
}

// places makes all parts of documents from the data that are kept in the tree below root.
func places(root string) ([]place, error) {
	evidence := filepath.Join(root, "docs/evidence")
	files, err := filepath.Glob(filepath.Join(evidence, "readme-disk-*.json"))
	if err != nil {
		return nil, err
	}
	runs, err := disks(files)
	if err != nil {
		return nil, err
	}
	start, err := report.Open(filepath.Join(evidence, "bench-start.json.gz"))
	if err != nil {
		return nil, err
	}
	f, err := os.Open(filepath.Join(evidence, "headline.json.gz"))
	if err != nil {
		return nil, err
	}
	defer f.Close()
	service, err := headline.Read(f)
	if err != nil {
		return nil, err
	}
	if service.Partial {
		return nil, fmt.Errorf("%s is of an interrupted run: go on with it by make headline HEADLINE=-resume", f.Name())
	}
	c, err := measured(runs, start.Study)
	if err != nil {
		return nil, err
	}
	short, err := c.short(service)
	if err != nil {
		return nil, err
	}
	return []place{
		{"docs/cost.md", "disk", block(table(runs))},
		{"README.md", "in short", short},
		{"README.md", "costs", c.table()},
		{"README.md", "service", service.Brief()},
	}, nil
}

// cost has the figures of what a node costs.
type cost struct {
	cpus     int
	lost     string // of the disk's requests a second, in percent
	verdicts string // of the rows of which that is
	start    string // the ratio to a plain runtime, with its interval
	ms       float64
	plain    result.ArmMedian // the plain runtime
	memory   float64          // MiB
}

// measured reads from reports what a node costs. It returns an error if start lacks a row.
func measured(disk []run, start *result.Study) (*cost, error) {
	c := &cost{cpus: disk[0].Machine.Cores}
	least, most, n := math.Inf(1), math.Inf(-1), 0
	verdicts := map[stat.Verdict]int{}
	for i := range disk {
		for j := range disk[i].rows {
			got := of(&disk[i].rows[j], result.Node)
			least, most, n = min(least, got.PenaltyPct), max(most, got.PenaltyPct), n+1
			verdicts[got.Verdict]++
		}
	}
	c.lost = strings.ReplaceAll(fmt.Sprintf("%+.1f to %+.1f %%", least, most), "-", "−")
	c.verdicts = fmt.Sprintf("%d rows at a margin of %g %%", n, disk[0].MarginPct)
	for _, v := range []stat.Verdict{stat.Equivalent, stat.Better, stat.Worse, stat.Undecided} {
		if verdicts[v] > 0 {
			c.verdicts += fmt.Sprintf(", %d %s", verdicts[v], v)
		}
	}
	row := func(name string) *result.Row {
		for _, e := range start.Experiments {
			for i := range e.Rows {
				if strings.HasPrefix(e.Rows[i].Name, name) {
					return &e.Rows[i]
				}
			}
		}
		return &result.Row{}
	}
	run, memory := row("run a command and remove the node"), row("memory a node, beside its own process, MiB")
	if len(run.Arms) != 2 || len(run.Compared) != 1 || run.Compared[0].Penalty.CI95Pct == nil || len(memory.Arms) != 1 {
		return nil, errors.New("want a report of make bench-start")
	}
	times := func(pct float64) float64 { return 1 + pct/100 }
	p := run.Compared[0].Penalty
	c.start = fmt.Sprintf("%.2f times (%.2f to %.2f)", times(p.PenaltyPct), times(p.CI95Pct[0]), times(p.CI95Pct[1]))
	c.ms, c.plain, c.memory = run.Arms[0].Values["ms"], run.Arms[1], memory.Arms[0].Values["ms"]
	return c, nil
}

// short returns README's sentences of what a node costs and of what a service feels.
func (c *cost) short(service *headline.Report) (string, error) {
	var waits []any
	for _, arm := range []string{headline.Alone, headline.Unprotected, headline.Protected} {
		for _, a := range service.Arms {
			if a.Arm == arm {
				waits = append(waits, headline.Digits(a.P50))
			}
		}
	}
	if len(waits) != 3 {
		return "", errors.New("the report of the headline lacks an arm")
	}
	return fmt.Sprintf("**It costs** %s of the disk's requests a second, %s the start of plain %s, and %.1f MiB\nof memory a node. ",
			c.lost, c.start, c.plain.Arm, c.memory) +
			fmt.Sprintf("A service that answers in %s ms (p50) takes %s beside nodes, and %s with `berth protect`: [figures](#what-it-costs-and-what-a-service-feels).\n", waits...),
		nil
}

// table returns README's table of what a node costs.
func (c *cost) table() string {
	var b strings.Builder
	fmt.Fprintf(&b, "| a node costs | on a virtual machine with %d CPUs | by |\n|---|---|---|\n", c.cpus)
	fmt.Fprintf(&b, "| of the disk's requests a second | %s (%s) | `make readme-disk`, [data](docs/evidence/readme-disk-1.json) |\n", c.lost, c.verdicts)
	fmt.Fprintf(&b, "| to run a command, and the node's removal | %.1f ms; plain %s %.1f ms: %s | `make bench-start`, [data](docs/evidence/bench-start.json.gz) |\n",
		c.ms, c.plain.Arm, c.plain.Values["ms"], c.start)
	fmt.Fprintf(&b, "| memory, beside its own process | %.1f MiB | the same |\n", c.memory)
	return b.String()
}
