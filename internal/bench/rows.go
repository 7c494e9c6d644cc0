package bench

import (
	_ "embed" // the published tables
	"encoding/csv"
	"fmt"
	"strconv"
	"strings"
)

// Row is one line of the table: a fio job.
type Row struct {
	Name  string `json:"name"`        // "read 4K x512"; at most 14 characters for the rows that Rows makes
	Shape Shape  `json:"shape"`       // what the job does
	Block int64  `json:"block_bytes"` // size of one request, bytes
	Jobs  int    `json:"jobs"`        // threads, each with one request at a time
}

// Shape is the access pattern of a row, by fio's name.
type Shape string

// The first two are those of table 1 and of table 2 of the published measurement.
const (
	RandomRead      Shape = "randread"
	SequentialWrite Shape = "write"
	SequentialRead  Shape = "read"
	RandomWrite     Shape = "randwrite"
)

// Writes reports whether a job of the shape writes, and only writes.
func (s Shape) Writes() bool { return s == SequentialWrite || s == RandomWrite }

// publishedJobs is the number of threads in table 1.
const publishedJobs = 512

// boundThreads is the number of threads a core above which a row is flagged: most of what a thread then waits for is its
// turn on a CPU. With 512 threads on 32 cores, where the published table was measured, a row is not flagged.
const boundThreads = 16

// Rows returns the rows of both shapes: block sizes as published, or, when quick, 4 KiB and 32 KiB only, with no more
// threads than cores can serve without the row being flagged.
func Rows(quick bool, cores int) []Row {
	reads, writes, jobs := []int64{1, 2, 4, 8, 16, 32, 64, 128}, []int64{4, 8, 16, 32, 64}, publishedJobs
	if quick {
		reads, writes, jobs = []int64{4, 32}, []int64{4, 32}, min(publishedJobs, boundThreads*cores)
	}
	var rows []Row
	for _, kib := range reads {
		rows = append(rows, newRow(RandomRead, kib<<10, jobs))
	}
	for _, kib := range writes {
		rows = append(rows, newRow(SequentialWrite, kib<<10, 1))
	}
	return rows
}

func newRow(s Shape, block int64, jobs int) Row {
	verb := "read"
	if s == SequentialWrite {
		verb = "write"
	}
	return Row{Name: fmt.Sprintf("%s %dK x%d", verb, block>>10, jobs), Shape: s, Block: block, Jobs: jobs}
}

// Published is what CERN openlab and Intel printed in 2015 for a host and an LXC container on an Intel DC P3700 NVMe
// disk (random reads with 512 threads, sequential writes with one). It is there to compare with, not expected here.
type Published struct {
	HostIOPS   float64 `json:"host_iops"`
	NodeIOPS   float64 `json:"node_iops"`
	PenaltyPct float64 `json:"penalty_pct"` // lost IOPS, percent of the host
}

//go:embed table1-random-read.csv
var table1 string

//go:embed table2-sequential-write.csv
var table2 string

// published returns the figures for rows of r's shape and block size, nil where there are none.
func published(r Row) (*Published, error) {
	text := table1
	if r.Shape == SequentialWrite {
		text = table2
	}
	in := csv.NewReader(strings.NewReader(text))
	in.Comment = '#'
	lines, err := in.ReadAll()
	if err != nil {
		return nil, fmt.Errorf("read the published figures: %w", err)
	}
	for _, l := range lines[1:] {
		if l[0] != strconv.FormatInt(r.Block, 10) {
			continue
		}
		var v [3]float64
		for i := range v {
			if v[i], err = strconv.ParseFloat(l[i+1], 64); err != nil {
				return nil, fmt.Errorf("read the published figures: %w", err)
			}
		}
		return &Published{HostIOPS: v[0], NodeIOPS: v[1], PenaltyPct: v[2]}, nil
	}
	return nil, nil
}
