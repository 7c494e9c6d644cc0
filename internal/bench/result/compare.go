package result

import (
	"fmt"
	"maps"
	"math"
	"slices"

	"berth/internal/bench/stat"
)

// minSessions is how many sessions each side needs before the spread between sessions is known.
const minSessions = 2

// The arms of a comparison of two studies.
const (
	sideA = "A"
	sideB = "B"
)

// lost is added to the name of a measure for what an arm loses in it against the reference of the same study, in percent.
const lost = "_lost"

// Compare sets two studies side by side: another kernel, another storage. The result is a study with the arms A and B. Their
// trials were not made in turn, so only the spread between repeated sessions tells a real difference from one that every hour
// brings. Names are those of the files.
func Compare(a, b *Study, nameA, nameB string) *Study {
	c := &Study{Format: Format, MarginPct: max(a.MarginPct, b.MarginPct), Partial: a.Partial || b.Partial}
	for _, s := range []struct {
		letter, name string
		of           *Study
	}{{sideA, nameA, a}, {sideB, nameB, b}} {
		m := s.of.Machine
		c.Notes = append(c.Notes, fmt.Sprintf("%s: %s: %s, %d sessions, Linux %s, %s, %d cores", s.letter, s.name,
			s.of.Started.Format("2006-01-02 15:04"), len(s.of.Sessions), m.Kernel, dashed(m.CPU), m.Cores))
		if by := s.of.Emulated; by != "" {
			if c.Emulated != "" {
				c.Emulated += "; "
			}
			c.Emulated += s.letter + ": " + by
		}
	}
	c.Notes = append(c.Notes, differences(a, b)...)
	for i := range a.Experiments {
		ea := &a.Experiments[i]
		if eb := b.Experiment(ea.Name); eb != nil {
			if e := beside(ea, eb, c.MarginPct); len(e.Rows) > 0 {
				e.Design.Pairs = min(len(a.Sessions), len(b.Sessions))
				c.Experiments = append(c.Experiments, e)
			}
		}
	}
	c.Notes = append(c.Notes, "sessions were not made in turn: the intervals are those of the sessions' own spread (Welch's t test of their medians)")
	if min(len(a.Sessions), len(b.Sessions)) < minSessions {
		c.Notes = append(c.Notes, "undecided throughout: how much sessions differ by themselves was not measured. berth bench run --sessions 5 on both sides does")
	}
	return c
}

// beside compares the rows that two experiments have in common, by what each arm did and by what the nodes lost.
func beside(ea, eb *Experiment, marginPct float64) Experiment {
	e := Experiment{
		About: About{Name: ea.Name, Title: ea.Title, Setting: ea.Setting, Axis: Axis{Label: ea.Axis.Label}},
		Arms:  []Arm{{Name: sideA, Title: sideA}, {Name: sideB, Title: sideB}},
	}
	for _, m := range ea.Measures {
		if m.Compared {
			e.Measures = append(e.Measures, m)
		}
	}
	for _, m := range slices.Clone(e.Measures) {
		e.Measures = append(e.Measures, Measure{Name: m.Name + lost, Title: m.Title + " lost against " + ea.Arms[0].Name, Unit: "%", LessIsBetter: true, Compared: true})
	}
	counts := func(t Trial) bool { return t.Round > 0 }
	for _, row := range ea.Rows {
		inA, _ := ea.ByArm(row.Name, counts)
		inB, _ := eb.ByArm(row.Name, counts)
		for i, arm := range ea.Arms {
			if arm.Name == Null {
				continue
			}
			r := Row{Name: row.Name + " " + arm.Name}
			for _, m := range ea.Measures {
				if !m.Compared {
					continue
				}
				r.compareSides(m.Name, m, m.levels(inA[arm.Name]), m.levels(inB[arm.Name]), stat.MedianOf(m.all(inA[arm.Name])), stat.MedianOf(m.all(inB[arm.Name])), marginPct)
				if i > 0 {
					ref := ea.Arms[0].Name
					allA, sa := m.Pairs(inA[ref], inA[arm.Name])
					allB, sb := m.Pairs(inB[ref], inB[arm.Name])
					if len(allA.Arm) > 0 && len(allB.Arm) > 0 {
						r.compareSides(m.Name+lost, m, centers(sa), centers(sb), m.ToPct(stat.NewEstimate(allA.Logs()).Center), m.ToPct(stat.NewEstimate(allB.Logs()).Center), marginPct)
					}
				}
			}
			if arm.Emulated != "" || eb.emulates(arm.Name) {
				r.Flags = append(r.Flags, EmulatedCPU)
			}
			if len(r.Compared) > 0 {
				e.Rows = append(e.Rows, r)
			}
		}
	}
	return e
}

// emulates says whether the CPU of an arm is emulated.
func (e *Experiment) emulates(arm string) bool {
	return slices.ContainsFunc(e.Arms, func(a Arm) bool { return a.Name == arm && a.Emulated != "" })
}

// compareSides adds the two values of a measure, and how much worse B is. a and b are log ratios of sessions, more being better.
func (r *Row) compareSides(name string, m Measure, a, b []float64, valueA, valueB, marginPct float64) {
	if len(a) == 0 || len(b) == 0 {
		return
	}
	if len(r.Arms) == 0 {
		r.Arms = []ArmMedian{{Arm: sideA, Trials: len(a), Values: map[string]float64{}}, {Arm: sideB, Trials: len(b), Values: map[string]float64{}}}
	}
	r.Arms[0].Values[name], r.Arms[1].Values[name] = valueA, valueB
	c := &stat.Comparison{Pairs: min(len(a), len(b)), PenaltyPct: m.ToPct(stat.Mean(b) - stat.Mean(a)), Verdict: stat.Undecided, AtCould: stat.Undecided}
	if c.Pairs >= minSessions {
		c = stat.JudgeEstimate(stat.Welch(a, b), marginPct, m.ToPct)
		c.Pairs = min(len(a), len(b))
	}
	r.Compared = append(r.Compared, Comparison{Arm: sideB, Measure: name, Penalty: c})
}

// levels returns the log of each session's median; more is better.
func (m Measure) levels(trials map[Slot]Trial) []float64 {
	by := map[int][]float64{}
	for at, t := range trials {
		if v := t.Values[m.Name]; v > 0 {
			by[at.session] = append(by[at.session], v)
		}
	}
	var l []float64
	for _, number := range slices.Sorted(maps.Keys(by)) {
		v := math.Log(stat.MedianOf(by[number]))
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
		c = append(c, stat.NewEstimate(sessions[number]).Center)
	}
	return c
}

// differences says what is not the same on both sides.
func differences(a, b *Study) []string {
	var all []string
	add := func(what, x, y string) {
		if x != y {
			all = append(all, fmt.Sprintf("%s: %s / %s", what, dashed(x), dashed(y)))
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
		eb := b.Experiment(ea.Name)
		if eb == nil {
			all = append(all, ea.Name+" is in the first only")
			continue
		}
		for _, n := range onlyIn(ea.Arms, eb.Arms) {
			all = append(all, fmt.Sprintf("arm %s of %s is in the first only", n, ea.Name))
		}
		for _, n := range onlyIn(eb.Arms, ea.Arms) {
			all = append(all, fmt.Sprintf("arm %s of %s is in the second only", n, ea.Name))
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
		if a.Experiment(eb.Name) == nil {
			all = append(all, eb.Name+" is in the second only")
		}
	}
	return all
}

// onlyIn returns the names of arms that are in a and not in b, where both have some.
func onlyIn(a, b []Arm) []string {
	var names []string
	for _, one := range a {
		if len(b) > 0 && !slices.ContainsFunc(b, func(other Arm) bool { return other.Name == one.Name }) {
			names = append(names, one.Name)
		}
	}
	return names
}

func dashed(s string) string {
	if s == "" {
		return "-"
	}
	return s
}
