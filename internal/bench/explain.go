package bench

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
	"time"
)

// ExplainFormat names the JSON document of an Explained and its version; docs/bench-json.md describes it.
const ExplainFormat = "berth-bench-explain/1"

// Suspect is one ingredient that may carry a row's loss. It is tried by arms that differ in nothing else: the loss that
// it carries is the ratio of With to Without, block by block; where Base is given, the ratio of Base's two is taken off.
type Suspect struct {
	Name    string      `json:"name"`           // "user-namespace"
	Kind    SuspectKind `json:"kind"`           // how it is tried
	What    string      `json:"what"`           // what was compared with what
	With    string      `json:"with"`           // the arm that has the ingredient
	Without string      `json:"without"`        // the arm that has not
	Base    *[2]string  `json:"base,omitempty"` // arms whose ratio is what there is anyway
}

// SuspectKind says how an ingredient is tried.
type SuspectKind string

// The kinds.
const (
	Removed SuspectKind = "removed" // a node without it, against the node
	Added   SuspectKind = "added"   // the host with it, against the host
	Setting SuspectKind = "setting" // something that both arms have in common is changed: the loss under it, against the loss as it is
	InOrder SuspectKind = "order"   // which trial came first: seen in all blocks of host and null, without trials of its own
)

// Lineup is what a row is explained by: arms beside those of any run, and the suspects that they try.
type Lineup struct {
	Arms     []ExplainArm
	Suspects []Suspect
	Notes    []string // what was left out, and why

	now func(Arm) Arm // makes an arm use the settings as they were
}

// ExplainArm is an arm of a Lineup.
type ExplainArm struct {
	Name string
	Run  Arm
}

// Explained is what the trials say about one row.
type Explained struct {
	Format    string          `json:"format"`
	Partial   bool            `json:"partial"`
	Emulated  string          `json:"emulated,omitempty"` // what emulates the CPU
	Started   time.Time       `json:"started"`
	Ended     time.Time       `json:"ended"`
	Answer    string          `json:"answer"` // in words
	Seed      uint64          `json:"seed"`
	Pairs     int             `json:"pairs"`
	MarginPct float64         `json:"margin_pct"`
	RunMillis int64           `json:"run_ms"`
	Warm      int64           `json:"warm_ms"`
	Fio       string          `json:"fio"`
	Machine   Machine         `json:"machine"`
	TempC     *[2]float64     `json:"disk_temp_c,omitempty"` // before and after; absent: this disk does not tell
	Target    Target          `json:"target"`
	Node      json.RawMessage `json:"node,omitempty"`
	Row       Result          `json:"row"` // the node as it is against the host
	Suspects  []SuspectResult `json:"suspects"`
	Carry     []CarryOver     `json:"carry_over,omitempty"`
	Trials    []Trial         `json:"trials"`
	Notes     []string        `json:"notes,omitempty"`
}

// SuspectResult is what the trials say about one suspect.
type SuspectResult struct {
	Suspect
	Loss      *Comparison `json:"loss,omitempty"` // throughput that the ingredient costs, percent; its verdict stands for itself
	P         float64     `json:"p_differs"`
	PEquiv    float64     `json:"p_equivalent"`
	Corrected Verdict     `json:"verdict_corrected"` // with Holm's correction over all suspects: worse = it carries a loss
	// Of a setting: what it does to the host itself, as a penalty of the setting. Not corrected.
	Host *Comparison `json:"host_penalty,omitempty"`
}

// Explain runs one row in all arms of the lineup and of any run, and says which suspect carries the loss. o has one row.
// Interrupted, it returns what it has, marked partial, beside the error.
func Explain(ctx context.Context, o Options, arms Arms, l Lineup, progress func(Progress)) (*Explained, error) {
	all := arms.list()
	for _, a := range l.Arms {
		all = append(all, namedArm{a.Name, a.Run})
	}
	before := 0.
	rep, err := runArms(ctx, o, all, func(p Progress) {
		if progress != nil {
			progress(p)
		}
	}, func(m Machine) { before = diskTemp(m.Device) })
	if rep == nil || len(rep.Rows) != 1 {
		return nil, err
	}
	x := &Explained{
		Format: ExplainFormat, Partial: rep.Partial, Emulated: emulation(rep.Machine.CPU), Started: rep.Started, Ended: rep.Ended, Seed: rep.Seed,
		Pairs: rep.Pairs, MarginPct: rep.MarginPct, RunMillis: rep.RunMillis, Warm: rep.Warm, Fio: rep.Fio, Machine: rep.Machine,
		Target: rep.Target, Node: rep.Node, Row: rep.Rows[0], Trials: rep.Trials, Notes: l.Notes,
	}
	if after := diskTemp(rep.Machine.Device); before > 0 && after > 0 {
		x.TempC = &[2]float64{before, after}
	} else {
		x.Notes = append(x.Notes, "temperature is left out: this disk does not tell its own")
	}
	x.judge(l.Suspects)
	return x, err
}

// judge computes the results of the suspects from the trials, and the answer.
func (x *Explained) judge(suspects []Suspect) {
	by := map[string]map[int]float64{}
	for _, t := range x.Trials {
		if t.Round > 0 && t.Measured != nil {
			if by[t.Arm] == nil {
				by[t.Arm] = map[int]float64{}
			}
			by[t.Arm][t.Round] = t.IOPS
		}
	}
	x.Suspects, x.Carry = nil, ofDisk(x.Trials)
	for _, s := range suspects {
		r := SuspectResult{Suspect: s, Corrected: Undecided, P: 1, PEquiv: 1}
		if d := s.carried(by); len(d) > 0 {
			r.Loss, r.P, r.PEquiv = judge(d, x.MarginPct, penalty), differs(d), notEquivalent(d, logMargin(x.MarginPct))
		}
		if s.Kind == Setting && s.Base != nil {
			r.Host = judge(logRatios(by[s.Without], by[s.Base[1]]), x.MarginPct, penalty)
		}
		x.Suspects = append(x.Suspects, r)
	}
	if d := x.later(); len(d) > 0 {
		x.Suspects = append(x.Suspects, SuspectResult{
			Suspect: Suspect{Name: "order", Kind: InOrder, What: "the later of the host's two trials in a block, against the earlier", With: "later", Without: "earlier"},
			Loss:    judge(d, x.MarginPct, penalty), P: differs(d), PEquiv: notEquivalent(d, logMargin(x.MarginPct)), Corrected: Undecided,
		})
	}
	differ, equal := make([]float64, len(x.Suspects)), make([]float64, len(x.Suspects))
	for i, r := range x.Suspects {
		differ[i], equal[i] = r.P, r.PEquiv
	}
	differ, equal = holm(differ), holm(equal)
	for i := range x.Suspects {
		if r := &x.Suspects[i]; r.Loss != nil {
			r.Corrected = corrected(differ[i], equal[i], r.Loss.PenaltyPct)
		}
	}
	if need := leastPairs(len(x.Suspects)); x.Pairs < need {
		x.Notes = append(x.Notes, fmt.Sprintf("with %d pairs nothing can be called different after the correction for %d lines: that takes %d pairs (--pairs, "+
			"--budget) or fewer lines (--only)", x.Pairs, len(x.Suspects), need))
	}
	x.Answer = x.answer()
}

// leastPairs is how many pairs it takes for the smallest p-value there is, 2/2ⁿ, to pass Holm's correction over so many.
func leastPairs(tests int) int {
	n := MinPairs
	for 2/math.Pow(2, float64(n)) > .05/float64(tests) {
		n++
	}
	return n
}

// carried returns the log ratios that a suspect is judged by, of the rounds in which all its arms were measured.
func (s Suspect) carried(by map[string]map[int]float64) []float64 {
	var d []float64
	ratio := func(round int, with, without string) (float64, bool) {
		a, b := by[with][round], by[without][round]
		return math.Log(a / b), a > 0 && b > 0
	}
	rounds := make([]int, 0, len(by[s.With]))
	for round := range by[s.With] {
		rounds = append(rounds, round)
	}
	slices.Sort(rounds)
	for _, round := range rounds {
		v, ok := ratio(round, s.With, s.Without)
		if s.Base != nil && ok {
			var base float64
			base, ok = ratio(round, s.Base[0], s.Base[1])
			v -= base
		}
		if ok {
			d = append(d, v)
		}
	}
	return d
}

// later returns ln(later / earlier) of the two trials of the host in each block.
func (x *Explained) later() []float64 {
	type at struct {
		seq  int
		iops float64
	}
	host, null := map[int]at{}, map[int]at{}
	for _, t := range x.Trials {
		if t.Round > 0 && t.Measured != nil {
			switch t.Arm {
			case hostArm:
				host[t.Round] = at{t.Seq, t.IOPS}
			case nullArm:
				null[t.Round] = at{t.Seq, t.IOPS}
			}
		}
	}
	var d []float64
	for round := 1; round <= x.Pairs; round++ {
		h, n := host[round], null[round]
		if h.iops <= 0 || n.iops <= 0 {
			continue
		}
		if h.seq > n.seq {
			h, n = n, h
		}
		d = append(d, math.Log(n.iops/h.iops))
	}
	return d
}

// answer says it in words.
func (x *Explained) answer() string {
	c := x.Row.Penalty
	if c == nil {
		return x.Row.Name + ": nothing was measured that could be explained."
	}
	s := fmt.Sprintf("%s: the node loses %s %% of its throughput here: %s.", x.Row.Name, withInterval(c), c.Verdict)
	if n := x.Row.NullComp; n != nil {
		s += fmt.Sprintf(" The host against itself: %s %%.", withInterval(n))
	}
	var carry, hide []string
	for _, r := range x.Suspects {
		switch r.Corrected {
		case Worse:
			carry = append(carry, fmt.Sprintf("%s (%s %%)", r.Name, withInterval(r.Loss)))
		case Better:
			hide = append(hide, fmt.Sprintf("%s (%s %%)", r.Name, withInterval(r.Loss)))
		}
	}
	switch c.Verdict {
	case Undecided:
		s += " Whether there is a loss, this run cannot tell."
	case Equivalent, Better:
		s += " There is no loss to explain in this run."
	case Worse:
	}
	switch {
	case len(carry) > 0:
		s += " A loss is carried by " + strings.Join(carry, ", ") + "."
	case c.Verdict == Worse:
		s += " No ingredient alone was shown to carry it."
	default:
		s += " No ingredient was shown to carry a loss by itself."
	}
	if len(hide) > 0 {
		s += " Faster with it than without: " + strings.Join(hide, ", ") + "."
	}
	return s
}

// JSON writes the whole document.
func (x *Explained) JSON(w io.Writer) error {
	enc := json.NewEncoder(w)
	enc.SetIndent("", " ")
	return enc.Encode(x)
}
