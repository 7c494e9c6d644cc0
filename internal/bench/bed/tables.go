package bed

import (
	"context"
	"runtime"
	"slices"
	"time"

	"berth/internal/bench/result"
	"berth/internal/bench/stat"
)

// tables returns the experiments that are run by name only.
func tables(o *Options) []Definition {
	return slices.Concat([]Definition{DiskTable(o.Quick), netTable(o.Quick)}, isolationSet(o), gatewaySet(o))
}

// DiskTable is the experiment of berth bench disk: both published tables by IOPS.
func DiskTable(quick bool) Definition {
	d := Definition{
		About: result.About{
			Name: "disk", Title: "random reads and sequential writes by block size", Question: "How many requests a second does a fio job lose in a node?",
			Source: openlab + ", tables 1 and 2", Setting: "direct I/O, one request at a time a thread", Axis: result.Axis{Label: "block size", Unit: "B", Log: true},
			Measures: []result.Measure{
				{Name: "iops", Title: "requests", Unit: "1/s", Compared: true},
				{Name: "bytes_per_second", Title: "throughput", Unit: "B/s"},
				{Name: "lat_mean_us", Title: "mean latency", Unit: "us", LessIsBetter: true},
				{Name: "lat_p99_us", Title: "latency, 99th percentile", Unit: "us", LessIsBetter: true},
			},
		},
		Program: &fioProgram, Run: time.Second, Warm: 300 * time.Millisecond, Table: true, Disk: Rows(quick, runtime.NumCPU()), Make: makeDiskBed,
	}
	if quick {
		d.Run, d.Warm = 300*time.Millisecond, 100*time.Millisecond
	}
	d.Least = d.Run + d.Warm
	return d
}

// netTable is the experiment of berth bench net.
func netTable(quick bool) Definition {
	run, warm := 20*time.Second, 3*time.Second
	if quick {
		run, warm = time.Second, time.Second
	}
	d := netDefinition(result.About{
		Name: "net", Title: "network, one TCP stream each way, and round trips", Question: "What does a node's network cost in throughput, CPU time and latency?",
		Setting: "one TCP stream each way; 64 bytes there and back",
	}, run, warm, 1, 3, "")
	d.Table, d.Pairs, d.Least = true, stat.MinPairs, run+warm
	return d
}

func netDefinition(a result.About, run, warm time.Duration, streams, rows int, window string) Definition {
	a.Axis, a.Measures = result.Axis{Label: "direction"}, netMeasures()
	return Definition{
		About: a, Program: &iperfProgram, Run: run, Warm: warm, Least: 2 * time.Second, Whole: true,
		Cells: func(o *Options) int { return rows * (2 + max(len(o.Networks), 2)) },
		Make: func(ctx context.Context, b *Bed, _ *Definition, o *Options, lab Lab) error {
			return makeNetBed(ctx, b, o, lab, streams, window)
		},
	}
}
