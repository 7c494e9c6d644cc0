package result

import (
	"math"
	"slices"

	"berth/internal/bench/stat"
)

// Tried says how an ingredient of a node was tried: by two arms that differ in nothing else. What it costs is the ratio of With to
// Without, block by block; where Base is given, the ratio of Base's two is taken off.
type Tried struct {
	Kind    TriedKind        `json:"kind"`
	What    string           `json:"what"`                   // the comparison, in words
	With    string           `json:"with"`                   // the arm that has the ingredient
	Without string           `json:"without"`                // the arm that does not have it
	Base    *[2]string       `json:"base,omitempty"`         // arms whose ratio is there in any case
	Host    *stat.Comparison `json:"host_penalty,omitempty"` // of a setting: what it costs the host itself. Not corrected
}

// TriedKind says how an ingredient was tried.
type TriedKind string

// The kinds.
const (
	Removed TriedKind = "removed" // a node without it, against the node
	Added   TriedKind = "added"   // the host with it, against the host
	Setting TriedKind = "setting" // both arms are changed alike: the loss under it, against the loss as it is
	InOrder TriedKind = "order"   // the later of the host's two trials in a block, against the earlier: it needs no arm of its own
)

// The arms of an experiment of ingredients.
const (
	Without = "without"
	With    = "with"
)

// judgeTried computes the rows of ingredients from the trials of another experiment, by its first measure.
func (e *Experiment) judgeTried(from *Experiment, marginPct float64) {
	name := from.Measures[0].Name
	by := map[string]map[int]Trial{}
	for _, t := range from.Trials {
		if t.Round > 0 && t.Values != nil {
			if by[t.Arm] == nil {
				by[t.Arm] = map[int]Trial{}
			}
			by[t.Arm][t.Round] = t
		}
	}
	for i := range e.Rows {
		r := &e.Rows[i]
		r.Arms, r.Compared = nil, nil
		if r.Tried == nil {
			continue
		}
		for _, a := range []struct{ arm, of string }{{Without, r.Tried.Without}, {With, r.Tried.With}} {
			if len(by[r.Tried.With]) > 0 && len(by[r.Tried.Without]) > 0 {
				r.Arms = append(r.Arms, ArmMedian{Arm: a.arm, Trials: len(by[a.of]), Values: map[string]float64{name: stat.MedianOf(valuesOf(by[a.of], name))}})
			}
		}
		d := r.Tried.ratios(by, name)
		if c := stat.Judge(d, marginPct, stat.Penalty); c != nil {
			r.Compared = []Comparison{{Arm: With, Measure: name, Penalty: c, P: stat.Differs(d), PEquiv: stat.NotEquivalent(d, stat.LogMargin(marginPct))}}
		}
		if r.Tried.Kind == Setting && r.Tried.Base != nil {
			onHost := Tried{With: r.Tried.Base[1], Without: r.Tried.Without}
			r.Tried.Host = stat.Judge(onHost.ratios(by, name), marginPct, stat.Penalty)
		}
	}
}

func valuesOf(trials map[int]Trial, name string) (all []float64) {
	for _, t := range trials {
		all = append(all, t.Values[name])
	}
	return all
}

// ratios returns the log ratios of the rounds in which all arms were measured.
func (t *Tried) ratios(by map[string]map[int]Trial, name string) []float64 {
	if t.Kind == InOrder {
		return inOrderOf(by[Host], by[Null], name)
	}
	ratio := func(round int, with, without string) (float64, bool) {
		a, b := by[with][round].Values[name], by[without][round].Values[name]
		return math.Log(a / b), a > 0 && b > 0
	}
	var d []float64
	for _, round := range rounds(by[t.With]) {
		v, ok := ratio(round, t.With, t.Without)
		if t.Base != nil && ok {
			var base float64
			base, ok = ratio(round, t.Base[0], t.Base[1])
			v -= base
		}
		if ok {
			d = append(d, v)
		}
	}
	return d
}

// inOrderOf returns ln(later / earlier) of the host's two trials in each block.
func inOrderOf(host, null map[int]Trial, name string) []float64 {
	var d []float64
	for _, round := range rounds(host) {
		earlier, later := host[round], null[round]
		if earlier.Seq > later.Seq {
			earlier, later = later, earlier
		}
		if a, b := earlier.Values[name], later.Values[name]; a > 0 && b > 0 {
			d = append(d, math.Log(b/a))
		}
	}
	return d
}

func rounds(trials map[int]Trial) []int {
	all := make([]int, 0, len(trials))
	for round := range trials {
		all = append(all, round)
	}
	slices.Sort(all)
	return all
}
