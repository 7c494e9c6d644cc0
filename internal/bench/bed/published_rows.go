package bed

import (
	_ "embed" // the published tables
	"encoding/csv"
	"fmt"
	"strconv"
	"strings"

	"berth/internal/bench/result"
)

// publishedJobs is the number of threads in table 1.
const publishedJobs = 512

// boundThreads is the number of threads a core above which a row is flagged: most of what a thread then waits for is its
// turn on a CPU. With 512 threads on 32 cores, where the published table was measured, a row is not flagged.
const boundThreads = 16

// Rows returns the rows of the table of berth bench disk: block sizes as published, or, when quick, 4 KiB and 32 KiB only,
// with no more threads than the cores can serve without the row being flagged.
func Rows(quick bool, cores int) []Job {
	reads, writes, threads := []int64{1, 2, 4, 8, 16, 32, 64, 128}, []int64{4, 8, 16, 32, 64}, publishedJobs
	if quick {
		reads, writes, threads = []int64{4, 32}, []int64{4, 32}, min(publishedJobs, boundThreads*cores)
	}
	var rows []Job
	for _, kib := range reads {
		rows = append(rows, Job{Name: fmt.Sprintf("read %dK x%d", kib, threads), Value: float64(kib << 10), Pattern: "randread", Block: kib << 10, Threads: threads})
	}
	for _, kib := range writes {
		rows = append(rows, Job{Name: fmt.Sprintf("write %dK x1", kib), Value: float64(kib << 10), Pattern: "write", Block: kib << 10, Threads: 1})
	}
	return rows
}

// The tables are what CERN openlab and Intel printed in 2015 for a host and an LXC container on an Intel DC P3700 NVMe
// disk (random reads with 512 threads, sequential writes with one). They are there to compare with, not expected here.

//go:embed table1-random-read.csv
var table1 string

//go:embed table2-sequential-write.csv
var table2 string

// publishedOf returns the figures of a job with the same pattern and block size, nil where there are none.
func publishedOf(j Job) (*result.Figure, error) {
	text := table1
	switch j.Pattern {
	case "randread":
	case "write":
		text = table2
	default:
		return nil, nil
	}
	in := csv.NewReader(strings.NewReader(text))
	in.Comment = '#'
	lines, err := in.ReadAll()
	if err != nil {
		return nil, fmt.Errorf("read the published figures: %w", err)
	}
	for _, l := range lines[1:] {
		if l[0] != strconv.FormatInt(j.Block, 10) {
			continue
		}
		var v [3]float64
		for i := range v {
			if v[i], err = strconv.ParseFloat(l[i+1], 64); err != nil {
				return nil, fmt.Errorf("read the published figures: %w", err)
			}
		}
		return &result.Figure{Measure: "iops", Host: v[0], Node: v[1], PenaltyPct: v[2], What: "LXC, Intel DC P3700, 2015"}, nil
	}
	return nil, nil
}
