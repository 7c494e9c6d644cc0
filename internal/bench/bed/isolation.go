package bed

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"berth/internal/bench/result"
	"berth/internal/bench/stat"
	"berth/internal/spec/vnode"
	"berth/internal/sys/refuse"
)

// Part is one of the four questions of berth bench isolation.
type Part string

// The parts.
const (
	CostPart     Part = "a" // what being a node costs
	ThrottlePart Part = "b" // whether a rate holds
	WeightPart   Part = "c" // whether weights hold, and what they cost
	LatencyPart  Part = "d" // how long a reader waits beside batch writers
)

var partNames = map[Part]string{
	CostPart: "isolation-cost", ThrottlePart: "isolation-rates", WeightPart: "isolation-weights", LatencyPart: "isolation-latency",
}

// PartNames returns the names of the experiments of some parts; of all parts if none is given.
func PartNames(parts []Part) ([]string, error) {
	if len(parts) == 0 {
		parts = []Part{CostPart, ThrottlePart, WeightPart, LatencyPart}
	}
	var names []string
	for _, p := range parts {
		if partNames[p] == "" {
			return nil, refuse.Invalidf("there is no part %q: a (cost of a node), b (throttle), c (weights), d (latency)", p)
		}
		names = append(names, partNames[p])
	}
	return names, nil
}

// vnodes is the published measurement that parts a, b and c repeat.
const vnodes = "OS-level virtualization for block I/O (VNodes), PDSW 2015"

// The arms of part d beside the reader alone, and the arm with one node alone of part c.
const (
	aloneArm       = "alone"
	unprotectedArm = "unprotected"
	ClassesArm     = "classes" // reader storage, writers batch: weights and CPU
	ratesArm       = "rates"   // as classes, and the writers together have a quarter of what they write unprotected
)

// isolationSet returns the experiments of berth bench isolation.
func isolationSet(o *Options) []Definition {
	set := func(p Part, a result.About, arms int) Definition {
		a.Name = partNames[p]
		if p != LatencyPart {
			a.Source = vnodes
		}
		d := Definition{
			About: a, Program: &fioProgram, Run: 4 * time.Second, Warm: time.Second, Part: p, Table: true, Pairs: stat.MinPairs, OneByOne: true,
			Page:  "Berth benchmark: what nodes get, and what they leave to others",
			Cells: func(o *Options) int { return arms * len(isolationRows(p, o.Quick)) }, Make: makeIsolationBed,
		}
		if o.Quick {
			d.Run, d.Warm = 800*time.Millisecond, 300*time.Millisecond
		}
		d.Least = d.Run + d.Warm + Lead
		return d
	}
	throughput := func(title string) result.Measure {
		return result.Measure{Name: "bytes_per_second", Title: title, Unit: "B/s", Compared: true}
	}
	weights := set(WeightPart, result.About{
		Title: "What weights give, and what they cost", Question: "What share of the disk does each node get, and what do all lose in total against one node alone?",
		Setting: "reads of 64 KiB, or of objects of the size in the name (of 16 MiB: in requests of 1 MiB, which is ours), so many in flight a node as q says; " +
			"50:50: the shares that are asked for; a weight is ten times the share",
		Measures: []result.Measure{throughput("throughput of all")},
	}, 2)
	for i := range 4 {
		weights.Measures = append(weights.Measures, result.Measure{Name: ShareOf(i), Title: fmt.Sprintf("share of node %d", i+1), Unit: "%"})
	}
	weights.After = func(e *result.Experiment) []string { return shareNotes(e, isolationRows(WeightPart, o.Quick)) }
	latency := set(LatencyPart, result.About{
		Title: "What a reader waits beside writers", Question: "How much longer does a reader wait beside three writers, and what do classes and rates take away of it?",
		Setting: "a reader of 16 KiB, one request at a time, beside three writers of 256 KiB, 16 in flight each; classes: the reader is of class storage, " +
			"the writers of class batch; rates: they have write rates too, together a quarter of what they wrote unprotected",
		Measures: []result.Measure{
			{Name: "lat_p99_us", Title: "p99 latency", Unit: "us", LessIsBetter: true, Compared: true},
			{Name: "lat_p50_us", Title: "p50 latency", Unit: "us", LessIsBetter: true},
			{Name: "reads_per_second", Title: "reads", Unit: "1/s"},
			{Name: "written_bytes_per_second", Title: "written by the others", Unit: "B/s"},
		},
	}, 4)
	latency.After = protectionNotes
	return []Definition{
		set(CostPart, result.About{
			Title: "What being a node costs", Question: "What do processes lose, each in a node, against as many on the host?",
			Setting:  "random reads of whole objects, one request at a time a process; x4: four processes, each in a node of its own",
			Measures: []result.Measure{throughput("throughput of all")},
		}, 3),
		set(ThrottlePart, result.About{
			Title: "Whether a rate holds", Question: "What does a node with a rate get, beside nodes without one?",
			Setting:  "reads of 64 KiB, or of objects of the size in the name (of 16 MiB: in requests of 1 MiB, which is ours); +3: beside three nodes without a limit, 16 requests in flight each",
			Measures: []result.Measure{throughput("throughput"), {Name: "others_bytes_per_second", Title: "throughput of the others", Unit: "B/s"}},
		}, 1),
		weights,
		latency,
	}
}

// isolationRow is a row of one part. Which fields it has depends on the part.
type isolationRow struct {
	name  string
	block int64 // bytes of an object
	count int   // a: nodes; b: competitors
	rate  int64 // b: bytes a second that are asked for
	split []int // c: percent of each node
	depth int   // c: requests in flight a node
}

// ours is the size of an object in parts b and c that the published measurement does not have; publishedSizes are those that it has.
const ours = 64 << 10

var publishedSizes = []int{16 << 10, 16 << 20}

// isolationRows returns the rows of a part: those of the published measurement, fewer when quick.
func isolationRows(p Part, quick bool) (rows []isolationRow) {
	pick := func(all, few []int) []int {
		if quick {
			return few
		}
		return all
	}
	switch p {
	case CostPart:
		for _, size := range []int64{16 << 10, 16 << 20} {
			for _, n := range pick([]int{1, 2, 4, 8}, []int{1, 4}) {
				rows = append(rows, isolationRow{name: fmt.Sprintf("%s x%d", vnode.Bytes(size), n), block: size, count: n})
			}
		}
	case ThrottlePart:
		for _, mb := range pick([]int{10, 20, 30, 40}, []int{10, 40}) {
			for _, n := range pick([]int{0, 1, 2, 3}, []int{0, 3}) {
				rows = append(rows, isolationRow{name: fmt.Sprintf("%d MB/s +%d", mb, n), block: ours, rate: int64(mb) * 1e6, count: n})
			}
		}
		for _, size := range pick(publishedSizes, nil) {
			for _, mb := range []int{10, 20, 30, 40} {
				for _, n := range []int{0, 3} {
					rows = append(rows, isolationRow{name: fmt.Sprintf("%d MB/s +%d %s", mb, n, vnode.Bytes(size)), block: int64(size), rate: int64(mb) * 1e6, count: n})
				}
			}
		}
	case WeightPart:
		splits := [][]int{{50, 50}, {50, 25, 25}, {40, 20, 20, 20}}
		for _, depth := range pick([]int{1, 16, 64}, []int{16}) {
			for _, split := range splits {
				rows = append(rows, isolationRow{name: splitName(split) + " q" + strconv.Itoa(depth), block: ours, split: split, depth: depth})
			}
		}
		for _, size := range pick(publishedSizes, nil) {
			for _, split := range splits {
				rows = append(rows, isolationRow{name: splitName(split) + " q16 " + vnode.Bytes(size).String(), block: int64(size), split: split, depth: 16})
			}
		}
	case LatencyPart:
		rows = []isolationRow{{name: "reader"}}
	}
	return rows
}

func splitName(split []int) string {
	var all []string
	for _, n := range split {
		all = append(all, strconv.Itoa(n))
	}
	return strings.Join(all, ":")
}

// ShareOf is the name of the measure of a node's share, in percent.
func ShareOf(node int) string { return fmt.Sprintf("share%d", node+1) }

// sharePoints is how far a share may lie from what was asked.
const sharePoints = 5

// shareNotes says of each row whether each share lies within sharePoints of what was asked.
func shareNotes(e *result.Experiment, rows []isolationRow) (notes []string) {
	for _, row := range rows {
		var got []string
		within := stat.Equivalent
		for i, asked := range row.split {
			var points []float64
			for _, t := range e.Trials {
				if v, ok := t.Values[ShareOf(i)]; ok && t.Row == row.name && t.Arm == result.Node && t.Round > 0 {
					points = append(points, v-float64(asked))
				}
			}
			if len(points) == 0 {
				continue
			}
			est := stat.SerialEstimate(points)
			text := fmt.Sprintf("%.1f", float64(asked)+est.Center)
			if est.I95 != nil {
				text += fmt.Sprintf(" (%.1f to %.1f)", float64(asked)+est.I95.Lo, float64(asked)+est.I95.Hi)
			}
			got, within = append(got, text), stat.Lesser(within, stat.Within(est, sharePoints))
		}
		if got == nil {
			continue
		}
		says := map[stat.Verdict]string{
			stat.Equivalent: "each is shown to lie within %d points of what was asked", stat.Worse: "one is shown to lie further than %d points from what was asked",
			stat.Undecided: "whether each lies within %d points of what was asked, this run cannot tell",
		}[within]
		notes = append(notes, fmt.Sprintf("%s: got %s %% (95 %%); "+says, row.name, strings.Join(got, ", "), sharePoints))
	}
	if slices.ContainsFunc(rows, func(r isolationRow) bool { return r.depth == 1 }) {
		notes = append(notes, "with one request in flight a weight has no effect (docs/weights.md): these rows show it")
	}
	return notes
}

// protectionNotes says of each protected arm what protection does to the p99.
func protectionNotes(e *result.Experiment) (notes []string) {
	by := map[string]map[int]float64{}
	for _, t := range e.Trials {
		if v := t.Values["lat_p99_us"]; t.Round > 0 && v > 0 {
			if by[t.Arm] == nil {
				by[t.Arm] = map[int]float64{}
			}
			by[t.Arm][t.Round] = v
		}
	}
	for _, arm := range []string{ClassesArm, ratesArm} {
		if p := stat.Protection(by[aloneArm], by[unprotectedArm], by[arm]); p != nil {
			notes = append(notes, arm+": the p99 is "+p.Text("writers")+".")
		}
	}
	return notes
}
