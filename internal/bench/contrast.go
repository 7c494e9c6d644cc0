package bench

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"math"
	"slices"
	"time"
)

// ContrastFormat names the JSON document of a Contrast and its version; docs/bench-json.md describes it.
const ContrastFormat = "berth-bench-compare/1"

// minSessions is how many sessions each side needs before the spread between sessions is known.
const minSessions = 2

// Contrast sets two studies side by side: another kernel, another storage. Their trials were not made in turn, so only
// the spread between repeated sessions can tell a difference from what differs from one hour to the next.
type Contrast struct {
	Format      string               `json:"format"`
	MarginPct   float64              `json:"margin_pct"`
	A           Side                 `json:"a"`
	B           Side                 `json:"b"`
	Differ      []string             `json:"differ,omitempty"` // what is not the same on both sides, as sentences
	Experiments []ContrastExperiment `json:"experiments"`
	Notes       []string             `json:"notes,omitempty"`
}

// Side is one of the studies.
type Side struct {
	Name     string    `json:"name"` // of its file
	Started  time.Time `json:"started"`
	Sessions int       `json:"sessions"`
	Machine  Machine   `json:"machine"`
	Emulated string    `json:"emulated,omitempty"` // what emulates the CPU
}

// ContrastExperiment is an experiment that both studies have.
type ContrastExperiment struct {
	Name  string        `json:"name"`
	Title string        `json:"title"`
	Rows  []ContrastRow `json:"rows"`
}

// ContrastRow is one number on both sides: what an arm did, or what it lost against the reference.
type ContrastRow struct {
	Row     string `json:"row"`
	Arm     string `json:"arm"`
	Measure string `json:"measure"`
	Unit    string `json:"unit"` // "%": it is the arm's penalty

	A         float64     `json:"a"`
	B         float64     `json:"b"`
	ChangePct float64     `json:"change_pct"`         // how much worse B is than A, in percent of A's speed or cost
	CI95Pct   *[2]float64 `json:"ci95_pct,omitempty"` // absent: the spread between sessions is not known
	CI90Pct   *[2]float64 `json:"ci90_pct,omitempty"`
	Verdict   Verdict     `json:"verdict"`
}

// Compare sets b beside a. Names are the files'.
func Compare(a, b *Study, nameA, nameB string) *Contrast {
	c := &Contrast{Format: ContrastFormat, MarginPct: max(a.MarginPct, b.MarginPct), A: sideOf(a, nameA), B: sideOf(b, nameB), Differ: differences(a, b)}
	for i := range a.Experiments {
		ea := &a.Experiments[i]
		eb := b.experiment(ea.Name)
		if eb == nil || len(ea.Rows) == 0 || len(eb.Rows) == 0 {
			continue
		}
		x := ContrastExperiment{Name: ea.Name, Title: ea.Title}
		for _, r := range ea.Rows {
			x.Rows = append(x.Rows, c.rows(ea, eb, r.Name)...)
		}
		if len(x.Rows) > 0 {
			c.Experiments = append(c.Experiments, x)
		}
	}
	if min(c.A.Sessions, c.B.Sessions) < minSessions {
		c.Notes = append(c.Notes, "undecided throughout: how much sessions differ by themselves was not measured. berth bench run --sessions 5 on both sides does")
	}
	return c
}

func sideOf(s *Study, name string) Side {
	return Side{Name: name, Started: s.Started, Sessions: len(s.Sessions), Machine: s.Machine, Emulated: s.Emulated}
}

// rows compares what the reference and the nodes did in a row, and what the nodes lost.
func (c *Contrast) rows(ea, eb *Experiment, row string) []ContrastRow {
	counts := func(t StudyTrial) bool { return t.Round > 0 }
	inA, _ := ea.byArm(row, counts)
	inB, _ := eb.byArm(row, counts)
	var all []ContrastRow
	for _, m := range ea.Measures {
		if !m.Compared {
			continue
		}
		for i, arm := range ea.Arms {
			if arm.Name == nullArm {
				continue
			}
			if la, lb := m.levels(inA[arm.Name]), m.levels(inB[arm.Name]); len(la) > 0 && len(lb) > 0 {
				r := ContrastRow{Row: row, Arm: arm.Name, Measure: m.Name, Unit: m.Unit, A: MedianOf(m.all(inA[arm.Name])), B: MedianOf(m.all(inB[arm.Name]))}
				c.judge(&r, m, la, lb)
				all = append(all, r)
			}
			if i == 0 {
				continue
			}
			ref := ea.Arms[0].Name
			allA, sa := m.blocks(inA[ref], inA[arm.Name])
			allB, sb := m.blocks(inB[ref], inB[arm.Name])
			if len(allA.arm) > 0 && len(allB.arm) > 0 {
				r := ContrastRow{
					Row: row, Arm: arm.Name, Measure: m.Name, Unit: "%",
					A: m.toPct(estimate(allA.logs()).Center), B: m.toPct(estimate(allB.logs()).Center),
				}
				c.judge(&r, m, centers(sa), centers(sb))
				all = append(all, r)
			}
		}
	}
	return all
}

// levels returns the log of each session's median; more is better.
func (m Measure) levels(trials map[slot]StudyTrial) []float64 {
	by := map[int][]float64{}
	for at, t := range trials {
		if v := t.Values[m.Name]; v > 0 {
			by[at.session] = append(by[at.session], v)
		}
	}
	var l []float64
	for _, number := range slices.Sorted(maps.Keys(by)) {
		v := math.Log(MedianOf(by[number]))
		if m.LessIsBetter {
			v = -v
		}
		l = append(l, v)
	}
	return l
}

func centers(sessions map[int][]float64) []float64 {
	var c []float64
	for _, number := range slices.Sorted(maps.Keys(sessions)) {
		c = append(c, estimate(sessions[number]).Center)
	}
	return c
}

// judge compares the sessions of both sides by Welch's t test: their spreads need not be equal.
func (c *Contrast) judge(r *ContrastRow, m Measure, a, b []float64) {
	meanA, meanB := mean(a), mean(b)
	r.ChangePct, r.Verdict = m.toPct(meanB-meanA), Undecided
	if len(a) < minSessions || len(b) < minSessions {
		return
	}
	va, vb := variance(a)/float64(len(a)), variance(b)/float64(len(b))
	e := Estimate{Center: meanB - meanA}
	se, freedom := math.Sqrt(va+vb), float64(len(a)+len(b)-2)
	if se > 0 { // Welch 1947
		freedom = (va + vb) * (va + vb) / (va*va/float64(len(a)-1) + vb*vb/float64(len(b)-1))
	}
	half := se * studentQuantile(.975, freedom)
	e.I95 = &Interval{e.Center - half, e.Center + half}
	half = se * studentQuantile(.95, freedom)
	e.I90 = &Interval{e.Center - half, e.Center + half}
	r.CI95Pct, r.CI90Pct = percent(e.I95, m.toPct), percent(e.I90, m.toPct)
	r.Verdict = decide(e, logMargin(c.MarginPct))
}

func mean(x []float64) float64 {
	sum := 0.0
	for _, v := range x {
		sum += v
	}
	return sum / float64(len(x))
}

func variance(x []float64) float64 {
	m, sum := mean(x), 0.0
	for _, v := range x {
		sum += (v - m) * (v - m)
	}
	return sum / float64(len(x)-1)
}

// differences says what is not the same on both sides.
func differences(a, b *Study) []string {
	var all []string
	add := func(what, x, y string) {
		if x != y {
			all = append(all, fmt.Sprintf("%s: %s / %s", what, orDash(x), orDash(y)))
		}
	}
	add("kernel", a.Machine.Kernel, b.Machine.Kernel)
	add("CPU", a.Machine.CPU, b.Machine.CPU)
	add("cores", fmt.Sprint(a.Machine.Cores), fmt.Sprint(b.Machine.Cores))
	add("CPU governor", a.Machine.Governor, b.Machine.Governor)
	add("Berth", a.Berth, b.Berth)
	for _, t := range a.Tools {
		if i := slices.IndexFunc(b.Tools, func(o Tool) bool { return o.Name == t.Name }); i >= 0 {
			add(t.Name, t.Version, b.Tools[i].Version)
		}
	}
	for i := range a.Experiments {
		ea := &a.Experiments[i]
		eb := b.experiment(ea.Name)
		if eb == nil {
			all = append(all, ea.Name+" is in the first only")
			continue
		}
		add("length of a trial of "+ea.Name, fmt.Sprintf("%d ms", ea.Design.RunMillis), fmt.Sprintf("%d ms", eb.Design.RunMillis))
		for i := range min(len(ea.Targets), len(eb.Targets)) {
			x, y := ea.Targets[i], eb.Targets[i]
			add("disk of "+ea.Name, x.Device+" "+x.Model, y.Device+" "+y.Model)
			add("scheduler of "+ea.Name, x.Scheduler, y.Scheduler)
			add("file system of "+ea.Name, x.FileSystem+" "+x.MountOpts, y.FileSystem+" "+y.MountOpts)
			add("size of "+ea.Name, fmt.Sprint(x.Size), fmt.Sprint(y.Size))
		}
	}
	for _, eb := range b.Experiments {
		if a.experiment(eb.Name) == nil {
			all = append(all, eb.Name+" is in the second only")
		}
	}
	return all
}

// JSON writes the contrast as one indented document.
func (c *Contrast) JSON(w io.Writer) error {
	enc := json.NewEncoder(w)
	enc.SetIndent("", " ")
	return enc.Encode(c)
}
