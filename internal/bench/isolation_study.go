package bench

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"berth/internal/vnode"
)

// Study shows the report as a study, an experiment a part (of weights: the total, and the shares at each depth), so that
// it has the forms that a study has. Comparisons are those of the report: each row stands for itself.
func (r *Isolation) Study() *Study {
	s := &Study{
		Format: StudyFormat, Partial: r.Partial, Emulated: r.Machine.Emulation(), Started: r.Started, Ended: r.Ended, Seed: r.Seed,
		MarginPct: r.MarginPct, Machine: r.Machine, Tools: []Tool{{Name: "fio", Version: r.Fio}},
		Notes: slices.Concat(r.Notes, []string{"each row is judged by itself: of 20 rows without a difference one is expected to be called worse or better"}),
	}
	s.Machine.Disk = Disk{} // it is with the experiments
	for _, all := range [][]Experiment{r.costStudy(), r.throttleStudy(), r.weightStudy(), r.latencyStudy()} {
		for _, e := range all {
			if len(e.Trials) > 0 {
				s.Experiments = append(s.Experiments, r.judged(e))
			}
		}
	}
	for _, l := range r.LeftOut {
		s.Experiments = append(s.Experiments, Experiment{
			About: About{Name: "isolation-" + string(l.Part), Title: "Part " + string(l.Part), Source: sourceOf(l.Part)}, Skipped: l.text(),
		})
	}
	if failed := r.failed(); failed > 0 {
		s.Notes = append(s.Notes, fmt.Sprintf("%d of %d trials failed and are left out", failed, len(r.Trials)))
	}
	return s
}

// sourceOf is what a part repeats: the published measurement has no latencies.
func sourceOf(p Part) string {
	if p == LatencyPart {
		return ""
	}
	return "OS-level virtualization for block I/O (VNodes), PDSW 2015"
}

// askedArm stands for what was asked: the same number in each round.
const askedArm = "asked"

// judged analyses an experiment whose trials are there.
func (r *Isolation) judged(e Experiment) Experiment {
	e.Targets = []DiskUsed{{Target: r.Target, Disk: r.Machine.Disk}}
	e.Design = Design{Pairs: r.Rounds, RunMillis: r.RunMillis, WarmMillis: r.Warm}
	e.analyse(r.MarginPct)
	e.Trials = nil // some stand for what was asked, none says what else went on
	for _, row := range e.Rows {
		for i := range row.Compared {
			row.Compared[i].P, row.Compared[i].PEquiv, row.Compared[i].Corrected = 0, 0, ""
		}
	}
	return e
}

// take adds a row, if it is new, and what one of its arms measured, round by round.
func (e *Experiment) take(row, arm string, trials map[int]*IsolationMeasured, values func(*IsolationMeasured) map[string]float64) {
	if len(trials) == 0 {
		return
	}
	if !slices.ContainsFunc(e.Rows, func(r StudyRow) bool { return r.Name == row }) {
		e.Rows = append(e.Rows, StudyRow{Name: row})
	}
	for _, round := range slices.Sorted(maps.Keys(trials)) {
		e.Trials = append(e.Trials, StudyTrial{Head: Head{Row: row, Round: round, Arm: arm}, Session: 1, Values: values(trials[round])})
	}
}

// throughput is what isolation is compared by, under the same name as in other experiments.
func throughput(title string) Measure {
	return Measure{Name: "bytes_per_second", Title: title, Unit: "B/s", Compared: true}
}

func ofAll(m *IsolationMeasured) map[string]float64 {
	return map[string]float64{"bytes_per_second": total(m)}
}

func (r *Isolation) costStudy() []Experiment {
	e := Experiment{
		About: About{
			Name: "isolation-cost", Source: sourceOf(CostPart), Title: "What being a node costs", Question: "What do processes lose, each in a node, against as many on the host?",
			Setting:  "random reads of whole objects, one request at a time a process; x4: four processes, each in a node of its own",
			Measures: []Measure{throughput("throughput of all")},
		},
		Arms:  []ArmInfo{{Name: hostArm, Title: "host"}, {Name: nullArm, Title: "host again"}, {Name: nodeArm, Title: "nodes"}},
		Notes: []string{publishedCost},
	}
	for _, row := range rowsOf(CostPart, r.Quick) {
		for _, a := range e.Arms {
			e.take(row.name, a.Name, r.trials(CostPart, row.name, a.Name), ofAll)
		}
	}
	return []Experiment{e}
}

func (r *Isolation) throttleStudy() []Experiment {
	e := Experiment{
		About: About{
			Name: "isolation-rates", Source: sourceOf(ThrottlePart), Title: "Whether a rate holds", Question: "What does a node with a rate get, beside nodes without one?",
			Setting:  "reads of 64 KiB, or of objects of the size in the name (of 16 MiB: in requests of 1 MiB, which is ours); +3: beside three nodes without a limit, 16 requests in flight each",
			Measures: []Measure{throughput("throughput"), {Name: "others_bytes_per_second", Title: "throughput of the others", Unit: "B/s"}},
		},
		Arms:  []ArmInfo{{Name: askedArm, Title: "what was asked"}, {Name: nodeArm, Title: "node with a rate"}},
		Notes: []string{publishedThrottle},
	}
	for _, row := range rowsOf(ThrottlePart, r.Quick) {
		got := r.trials(ThrottlePart, row.name, nodeArm)
		e.take(row.name, askedArm, got, func(*IsolationMeasured) map[string]float64 {
			return map[string]float64{"bytes_per_second": float64(row.rate)}
		})
		e.take(row.name, nodeArm, got, func(m *IsolationMeasured) map[string]float64 {
			return map[string]float64{"bytes_per_second": m.Jobs[0].Bandwidth, "others_bytes_per_second": others(m)}
		})
	}
	return []Experiment{e}
}

func (r *Isolation) weightStudy() []Experiment {
	sum := Experiment{
		About: About{
			Name: "isolation-weights", Source: sourceOf(WeightPart), Title: "What weights cost", Question: "What do nodes that share the disk by weight lose in total, against one node alone?",
			Setting:  "reads of 64 KiB, or of objects of the size in the name (of 16 MiB: in requests of 1 MiB, which is ours), so many in flight a node as q says",
			Measures: []Measure{throughput("throughput of all")},
		},
		Arms:  []ArmInfo{{Name: "alone", Title: "one node alone"}, {Name: nodeArm, Title: "nodes with weights"}},
		Notes: append(r.engineNote(), publishedWeights),
	}
	all := []Experiment{}
	for _, row := range rowsOf(WeightPart, r.Quick) {
		got := r.trials(WeightPart, row.name, nodeArm)
		if len(row.split) == 1 {
			all = append(all, r.shareStudy(row.depth, row.block))
			continue
		}
		sum.take(row.name, "alone", r.trials(WeightPart, isolationAlone(row), nodeArm), ofAll)
		sum.take(row.name, nodeArm, got, ofAll)
	}
	return append([]Experiment{sum}, all...)
}

// shareStudy has the shares at a depth: medians to be seen, and beside them what the report says of them, in points.
func (r *Isolation) shareStudy(depth int, block int64) Experiment {
	size, suffix := vnode.Bytes(block).String(), ""
	if block != ours {
		suffix = "-" + strings.ToLower(size)
	}
	e := Experiment{
		About: About{
			Name: fmt.Sprintf("isolation-shares-q%d%s", depth, suffix), Source: sourceOf(WeightPart), Title: fmt.Sprintf("Whether weights hold: %d in flight, objects of %s", depth, size),
			Question: "What share of the disk does each node get?",
			Setting:  fmt.Sprintf("reads of objects of %s, %d in flight a node; a weight is ten times the share that is asked for", size, depth),
			Measures: []Measure{{Name: "share", Title: "share of the disk", Unit: "%"}},
		},
		Arms:  []ArmInfo{{Name: askedArm, Title: "what was asked"}, {Name: nodeArm, Title: "what the node got"}},
		Notes: r.engineNote(),
	}
	if depth == 1 {
		e.Notes = append(e.Notes, "with one request in flight a weight does not bite (docs/weights.md): these rows are there to show it")
	}
	for _, row := range rowsOf(WeightPart, r.Quick) {
		if row.depth != depth || row.block != block || len(row.split) == 1 {
			continue
		}
		got := r.trials(WeightPart, row.name, nodeArm)
		for i, asked := range row.split {
			name := fmt.Sprintf("%s, node %d", splitName(row.split), i+1)
			e.take(name, askedArm, got, func(*IsolationMeasured) map[string]float64 { return map[string]float64{"share": float64(asked)} })
			e.take(name, nodeArm, got, func(m *IsolationMeasured) map[string]float64 {
				return map[string]float64{"share": 100 * m.Jobs[i].Bandwidth / total(m)}
			})
		}
		if at := slices.IndexFunc(r.Weights, func(w WeightRow) bool { return w.Name == row.name }); at >= 0 {
			e.Notes = append(e.Notes, r.Weights[at].text())
		}
	}
	return e
}

// text says what was found out about the shares of a row.
func (w WeightRow) text() string {
	var got []string
	for _, s := range w.Shares {
		text := fmt.Sprintf("%.1f", s.Got)
		if s.CI95 != nil {
			text += fmt.Sprintf(" (%.1f to %.1f)", s.CI95[0], s.CI95[1])
		}
		got = append(got, text)
	}
	says := map[Verdict]string{
		Equivalent: "each is shown to lie within %d points of what was asked", Worse: "one is shown to lie further than %d points from what was asked",
	}[w.Holds]
	if says == "" {
		says = "whether each lies within %d points of what was asked, this run cannot tell"
	}
	return fmt.Sprintf("%s: got %s %% (95 %%); "+says, w.Name, strings.Join(got, ", "), sharePoints)
}

func (r *Isolation) latencyStudy() []Experiment {
	e := Experiment{
		About: About{
			Name: "isolation-latency", Title: "What a reader waits beside writers", Question: "How much longer does a reader wait beside three writers, and what do classes and rates take away of it?",
			Setting: "a reader of 16 KiB, one request at a time, beside three writers of 256 KiB, 16 in flight each; classes: the reader is of class storage, " +
				"the writers of class batch; rates: they have write rates too, together a quarter of what they wrote unprotected",
			Measures: []Measure{
				{Name: "lat_p99_us", Title: "p99 latency", Unit: "us", LessIsBetter: true, Compared: true},
				{Name: "lat_p50_us", Title: "p50 latency", Unit: "us", LessIsBetter: true},
				{Name: "reads_per_second", Title: "reads", Unit: "1/s"},
				{Name: "written_bytes_per_second", Title: "written by the others", Unit: "B/s"},
			},
		},
		Arms: []ArmInfo{
			{Name: aloneArm, Title: "the reader alone"},
			{Name: unprotectedArm, Title: unprotectedArm},
			{Name: classesArm, Title: classesArm},
			{Name: ratesArm, Title: ratesArm},
		},
		Notes: r.engineNote(),
	}
	name := rowsOf(LatencyPart, r.Quick)[0].name
	for _, a := range e.Arms {
		e.take(name, a.Name, r.trials(LatencyPart, name, a.Name), func(m *IsolationMeasured) map[string]float64 {
			return map[string]float64{
				"lat_p99_us": m.Jobs[0].LatP99, "lat_p50_us": m.Jobs[0].LatP50, "reads_per_second": m.Jobs[0].IOPS, "written_bytes_per_second": others(m),
			}
		})
	}
	if r.Latency != nil {
		e.Notes = append(e.Notes, r.Latency.worth()...)
	}
	return []Experiment{e}
}

func (r *Isolation) engineNote() []string {
	if r.Engine == "" {
		return nil
	}
	return []string{"the disk was switched to " + string(r.Engine) + " for it"}
}
