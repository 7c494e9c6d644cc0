// Command singlerun shows what a comparison of single runs would have found, as published tables often rest on one run of
// each side. For each row of a report of berth bench it prints how far two runs of the host in different rounds differ.
package main

import (
	"fmt"
	"math"
	"os"
	"slices"

	"berth/internal/bench/report"
	"berth/internal/bench/result"
)

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: singlerun REPORT.json")
		os.Exit(2)
	}
	if err := run(os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, "singlerun:", err)
		os.Exit(1)
	}
}

func run(path string) error {
	r, err := report.Open(path)
	if err != nil {
		return err
	}
	s := r.Study
	for _, e := range s.Experiments {
		disk := ""
		if len(e.Targets) > 0 {
			disk = e.Targets[0].Device
		}
		fmt.Printf("%s: two single runs of the host, of different rounds: %s, Linux %s, %d cores, %d ms a run\n", e.Name, disk, s.Machine.Kernel,
			s.Machine.Cores, e.Design.RunMillis)
		table(&e)
	}
	return nil
}

func table(e *result.Experiment) {
	fmt.Printf("%-16s %6s %14s %14s %12s %12s\n", "row", "runs", "median apart", "95 % are below", "over 16 %", "over 45 %")
	for _, row := range e.Rows {
		apart := differences(e.Trials, row.Name)
		if len(apart) == 0 {
			continue
		}
		fmt.Printf("%-16s %6d %12.1f %% %12.1f %% %10.1f %% %10.1f %%\n", row.Name, row.Arms[0].Trials, apart[len(apart)/2],
			apart[len(apart)*95/100], part(apart, 16), part(apart, 45))
	}
}

// differences returns, for all pairs of the host's runs, by how many percent the slower one is below the faster, in rising order.
func differences(trials []result.Trial, row string) []float64 {
	var iops, apart []float64
	for _, t := range trials {
		if t.Row == row && t.Arm == "host" && t.Round > 0 && t.Values["iops"] > 0 {
			iops = append(iops, t.Values["iops"])
		}
	}
	for i, a := range iops {
		for _, b := range iops[i+1:] {
			apart = append(apart, 100*(1-math.Min(a, b)/math.Max(a, b)))
		}
	}
	slices.Sort(apart)
	return apart
}

// part returns the percentage of sorted values that are not below the limit.
func part(sorted []float64, limit float64) float64 {
	below, _ := slices.BinarySearch(sorted, limit)
	return 100 * float64(len(sorted)-below) / float64(len(sorted))
}
