// Package published has the figures that others published of hosts, containers and machines, to compare with.
package published

import (
	_ "embed" // the published tables
	"encoding/csv"
	"fmt"
	"strconv"
	"strings"

	"berth/internal/bench/result"
)

// WNoDeS is the publication of virtual machines as worker nodes.
const WNoDeS = "WNoDeS, INFN-CNAF, ISGC 2011"

// The tables are what CERN openlab and Intel printed in 2015 for a host and an LXC container on an Intel DC P3700 NVMe
// disk (random reads with 512 threads, sequential writes with one). They are there to compare with, not expected here.

//go:embed table1-random-read.csv
var table1 string

//go:embed table2-sequential-write.csv
var table2 string

// Disk returns the figures of a job of fio with the same pattern (its rw) and block size in bytes, nil where there are none.
func Disk(pattern string, block int64) (*result.Figure, error) {
	text := table1
	switch pattern {
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
		if l[0] != strconv.FormatInt(block, 10) {
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

// What was published of machines, in percent of the host's.
const (
	MachineCPULoss  = 2.5
	MachineDiskLoss = 36
)

// OfMachines is what was published of machines, in words, for an experiment on disks, or else on CPUs.
func OfMachines(disks bool) string {
	said := fmt.Sprintf("%v %% of a CPU's work lost", MachineCPULoss)
	if disks {
		said = fmt.Sprintf("%v %% of a disk's throughput lost", MachineDiskLoss)
	}
	return "published of machines (KVM, " + WNoDeS + "; another machine, no intervals): " + said + ", and at least 90 % of a wire carried by virtio"
}

// OfMachine is the figure of a machine in a measure: only the loss was published.
func OfMachine(measure string, lossPct float64) result.Figure {
	return result.Figure{Measure: measure, PenaltyPct: lossPct, What: "KVM, " + WNoDeS, Arm: result.VirtualMachine}
}
