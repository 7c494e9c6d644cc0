package report

import (
	"fmt"
	"time"

	"berth/internal/bench"
)

// lxc names the source of the published figures that bench disk shows.
const lxc = "LXC, Intel DC P3700, 2015"

// ofDisk converts a report of berth bench disk to a study with one experiment per shape (random read, sequential write).
func ofDisk(r *bench.Report) *bench.Study {
	s := &bench.Study{
		Partial: r.Partial, Emulated: r.Machine.Emulation(), Started: r.Started, Ended: r.Ended, Seed: r.Seed, MarginPct: r.MarginPct,
		Machine: r.Machine, Tools: []bench.Tool{{Name: "fio", Version: r.Fio}}, Notes: r.Notes,
	}
	arms := []bench.ArmInfo{{Name: "host", Title: "host"}, {Name: nullArm, Title: "host again"}}
	if r.Node != nil {
		arms = append(arms, bench.ArmInfo{Name: "node", Title: "container node", Node: r.Node})
	}
	for _, about := range []bench.About{
		{Name: string(bench.RandomRead), Title: "Random read by block size", Source: "CERN openlab and Intel, SR-IOV with Linux Containers, 2015, table 1"},
		{Name: string(bench.SequentialWrite), Title: "Sequential write by block size", Source: "CERN openlab and Intel, SR-IOV with Linux Containers, 2015, table 2"},
	} {
		about.Axis = bench.Axis{Label: "block size", Unit: "B", Log: true}
		about.Setting = "fio, direct I/O, one request at a time per thread"
		about.Measures = []bench.Measure{
			{Name: "iops", Title: "IOPS", Compared: true},
			{Name: "bytes_per_second", Title: "throughput", Unit: "B/s"},
			{Name: "lat_mean_us", Title: "mean latency", Unit: "us", LessIsBetter: true},
			{Name: "lat_p99_us", Title: "p99 latency", Unit: "us", LessIsBetter: true},
		}
		e := bench.Experiment{
			About: about, Arms: arms, Targets: []bench.DiskUsed{{Target: r.Target, Disk: r.Machine.Disk}},
			Design: bench.Design{Pairs: r.Pairs, RunMillis: r.RunMillis, WarmMillis: r.Warm},
		}
		for _, row := range r.Rows {
			if string(row.Shape) == about.Name {
				e.Rows = append(e.Rows, diskRow(row))
			}
		}
		if len(e.Rows) > 0 {
			s.Experiments = append(s.Experiments, e)
		}
	}
	return s
}

func diskRow(row bench.Result) bench.StudyRow {
	block := float64(row.Block)
	out := bench.StudyRow{Name: row.Name, Value: &block, Command: row.Command, Flags: row.Flags}
	for _, a := range []struct {
		arm string
		m   *bench.Median
		c   *bench.Comparison
	}{{"host", row.Host, nil}, {nullArm, row.Null, row.NullComp}, {"node", row.Node, row.Penalty}} {
		if a.m != nil {
			out.Arms = append(out.Arms, bench.ArmMedian{Arm: a.arm, Trials: a.m.Trials, Values: map[string]float64{
				"iops": a.m.IOPS, "bytes_per_second": a.m.Bandwidth, "lat_mean_us": a.m.LatMean, "lat_p99_us": a.m.LatP99,
			}})
		}
		if a.c != nil {
			out.Compared = append(out.Compared, judgement(a.arm, "iops", a.c))
		}
	}
	if p := row.Published; p != nil {
		out.Published = []bench.Figure{{Measure: "iops", Host: p.HostIOPS, Node: p.NodeIOPS, PenaltyPct: p.PenaltyPct, What: lxc}}
	}
	return out
}

// judgement converts a comparison, with the corrected verdict if it has one.
func judgement(arm, measure string, c *bench.Comparison) bench.StudyComparison {
	j := bench.StudyComparison{Arm: arm, Measure: measure, Penalty: c}
	if c != nil && c.Tests != nil {
		j.P, j.PEquiv, j.Corrected = c.P, c.PEquiv, c.Corrected
	}
	return j
}

// ofIsolation converts a report of berth bench isolation to a study.
func ofIsolation(r *bench.Isolation) *bench.Study { return r.Study() }

// ofNet converts a report of berth bench net to a study of two experiments: streams and round trips.
func ofNet(r *bench.NetReport) *bench.Study {
	s := &bench.Study{
		Partial: r.Partial, Emulated: r.Machine.Emulation(), Started: r.Started, Ended: r.Ended, Seed: r.Seed, MarginPct: r.MarginPct,
		Machine: r.Machine, Tools: []bench.Tool{{Name: "iperf3", Version: r.Iperf}}, Notes: r.Notes,
	}
	peer, where := "a peer on this machine: its software path is measured, no wire", ", to a peer on this machine (no wire)"
	if !r.OwnPeer {
		peer, where = "a peer on another machine", ""
	}
	design := bench.Design{Pairs: r.Pairs, RunMillis: r.RunMillis, WarmMillis: r.Warm}
	streams := bench.Experiment{Design: design, About: bench.About{
		Name: "streams", Title: "Network throughput" + where, Setting: "iperf3, one TCP stream, " + peer,
		Measures: []bench.Measure{
			{Name: "throughput", Title: "throughput", Unit: "bit/s", Compared: true},
			{Name: "cpu", Title: "CPU time", Unit: "s/GB", LessIsBetter: true, Compared: true},
		},
	}}
	trips := bench.Experiment{Design: design, About: bench.About{
		Name: "trips", Title: "Network round trips" + where, Setting: "64 bytes there and back over TCP, one at a time, " + peer,
		Measures: []bench.Measure{
			{Name: "p50", Title: "p50 latency", Unit: "us", LessIsBetter: true, Compared: true},
			{Name: "p99", Title: "p99 latency", Unit: "us", LessIsBetter: true, Compared: true},
		},
	}}
	for _, a := range r.Arms {
		info := bench.ArmInfo{Name: a.Name, Title: a.Name, Node: a.Node}
		streams.Arms, trips.Arms = append(streams.Arms, info), append(trips.Arms, info)
	}
	for _, row := range r.Rows {
		e := &streams
		if len(row.Compared) > 0 && (row.Compared[0].Measure == "p50" || row.Compared[0].Measure == "p99") {
			e = &trips
		}
		e.Rows = append(e.Rows, netRow(row))
	}
	for _, e := range []bench.Experiment{streams, trips} {
		if len(e.Rows) > 0 {
			s.Experiments = append(s.Experiments, e)
		}
	}
	return s
}

func netRow(row bench.NetResult) bench.StudyRow {
	out := bench.StudyRow{Name: row.Name, Flags: row.Flags}
	for _, a := range row.Arms {
		v := map[string]float64{}
		for name, x := range map[string]float64{"throughput": a.Bits, "cpu": a.CPU, "p50": a.P50, "p99": a.P99} {
			if x != 0 {
				v[name] = x
			}
		}
		out.Arms = append(out.Arms, bench.ArmMedian{Arm: a.Arm, Trials: a.Trials, Values: v})
	}
	for _, c := range row.Compared {
		out.Compared = append(out.Compared, judgement(c.Arm, c.Measure, c.Penalty))
	}
	return out
}

// ofNull converts the evidence on null rows to a study of one experiment.
func ofNull(r *bench.NullReport) *bench.Study {
	e := bench.Experiment{
		About: bench.About{
			Name: "null", Title: "The host against itself", Question: "How often is the host called different from itself?",
			Setting: "quick runs of berth bench disk without a node, one after the other", Measures: []bench.Measure{{Name: "iops", Title: "IOPS", Compared: true}},
		},
		Arms:    []bench.ArmInfo{{Name: "host", Title: "host"}, {Name: nullArm, Title: "host again"}},
		Targets: []bench.DiskUsed{{Target: bench.Target{Kind: "file"}, Disk: r.Machine.Disk}},
	}
	for _, row := range r.Rows {
		e.Design.Pairs = max(e.Design.Pairs, row.Result.Pairs)
		e.Rows = append(e.Rows, bench.StudyRow{
			Name: fmt.Sprintf("run %d: %s", row.Run, row.Row),
			Arms: []bench.ArmMedian{
				{Arm: "host", Trials: len(row.Host), Values: map[string]float64{"iops": bench.MedianOf(row.Host)}},
				{Arm: nullArm, Trials: len(row.Null), Values: map[string]float64{"iops": bench.MedianOf(row.Null)}},
			},
			Compared: []bench.StudyComparison{judgement(nullArm, "iops", &row.Result)},
		})
	}
	for i, c := range r.Commands {
		if i < len(e.Rows) {
			e.Rows[i].Command = c
		}
	}
	return &bench.Study{
		Partial: r.Partial, Emulated: r.Emulated, Started: r.Started, Ended: r.Ended, MarginPct: r.Margin, Machine: r.Machine,
		Tools: []bench.Tool{{Name: "fio", Version: r.Fio}}, Experiments: []bench.Experiment{e},
	}
}

// took returns how long a run took, to the second.
func took(s *bench.Study) time.Duration { return s.Ended.Sub(s.Started).Round(time.Second) }
