// Package result holds the document of a benchmark, and computes its rows and verdicts from its trials; it does no I/O.
package result

import (
	"encoding/json"
	"io"
	"time"

	"berth/internal/bench/stat"
)

// Format names the JSON document of a Study and its version; docs/bench-json.md describes it.
const Format = "berth-bench/2"

// Study is the result of one call of berth bench: several experiments on one machine. The rows of an experiment follow from
// its trials; Judge computes them again.
type Study struct {
	Format   string    `json:"format"`
	Title    string    `json:"title,omitempty"`    // of the page; absent: what a node costs
	Partial  bool      `json:"partial"`            // the run was interrupted, or an arm broke: fewer pairs than planned
	Emulated string    `json:"emulated,omitempty"` // what emulates the CPU; a report says so on its first line
	Started  time.Time `json:"started"`
	Ended    time.Time `json:"ended"`
	Berth    string    `json:"berth,omitempty"` // version of Berth

	Seed      uint64  `json:"seed"`       // of the order of the trials
	MarginPct float64 `json:"margin_pct"` // for the verdicts, percent of the reference's
	Budget    float64 `json:"budget_s"`   // seconds for one session

	Machine     Machine      `json:"machine"` // without disks, which are with the experiments
	Tools       []Tool       `json:"tools"`
	Sessions    []Session    `json:"sessions"`
	Experiments []Experiment `json:"experiments"`
	OneByOne    bool         `json:"one_by_one,omitempty"` // each row is judged by itself, without a correction for how many there are
	Notes       []string     `json:"notes,omitempty"`
}

// Tool is a program that measured, the same in every arm.
type Tool struct {
	Name    string `json:"name"`    // "fio"
	Version string `json:"version"` // as it says itself: "fio-3.33"
}

// Session is one pass through all experiments, with nodes and data files of its own.
type Session struct {
	Number  int       `json:"number"` // from 1
	Started time.Time `json:"started"`
	Ended   time.Time `json:"ended"`
	Resumed int       `json:"resumed,omitempty"` // how often it was killed or interrupted and went on
}

// About says what an experiment is; it is the same on every machine.
type About struct {
	Name     string    `json:"name"`             // as berth bench run takes it
	Title    string    `json:"title"`            // "random read by block size"
	Question string    `json:"question"`         // in one sentence
	Source   string    `json:"source,omitempty"` // the published measurement that it repeats
	Setting  string    `json:"setting"`          // what all rows have in common
	Axis     Axis      `json:"axis"`
	Measures []Measure `json:"measures"` // the first is what a summary speaks of
}

// Axis is the quantity in which the rows of an experiment differ.
type Axis struct {
	Label string `json:"label"`          // "block size"
	Unit  string `json:"unit,omitempty"` // "B", "" for a count; rows without a value are names
	Log   bool   `json:"log,omitempty"`  // a logarithmic axis suits the values
}

// Measure is one of the numbers that a trial gives.
type Measure struct {
	Name         string `json:"name"`  // key of the values: "iops"
	Title        string `json:"title"` // "throughput"
	Unit         string `json:"unit"`  // "1/s", "B/s", "bit/s", "us", "ms", "s", "s/GB"
	LessIsBetter bool   `json:"less_is_better,omitempty"`
	Compared     bool   `json:"compared,omitempty"` // arms are compared by it; else it is reported only
}

// Experiment is the result of one experiment.
type Experiment struct {
	About
	Skipped string      `json:"skipped,omitempty"` // why it was not measured; then there are no rows
	Arms    []Arm       `json:"arms,omitempty"`    // the first is the reference; "null" is the reference again
	Targets []DiskUsed  `json:"targets,omitempty"`
	Design  Design      `json:"design"`
	Rows    []Row       `json:"rows,omitempty"`
	Carry   []CarryOver `json:"carry_over,omitempty"`
	Trials  []Trial     `json:"trials,omitempty"` // in the order in which they ran
	Notes   []string    `json:"notes,omitempty"`
}

// Arm says what an arm was.
type Arm struct {
	Name     string          `json:"name"`               // host, null, node, machine, bridge, runc …
	Title    string          `json:"title"`              // "container node"
	Node     json.RawMessage `json:"node,omitempty"`     // the node's spec
	Emulated string          `json:"emulated,omitempty"` // what emulates the CPU of this arm alone; a report says so on its first line
}

// DiskUsed is a file or device that was measured, and the disk under it.
type DiskUsed struct {
	Target
	Disk
}

// Design is how much was measured, fixed before the first trial that counts.
type Design struct {
	Pairs       int     `json:"pairs"`                      // a row and session
	WantedPairs int     `json:"wanted_pairs,omitempty"`     // what the pilot asks for to decide the margin with 90 % power
	PilotPairs  int     `json:"pilot_pairs,omitempty"`      // not counted
	CouldPct    float64 `json:"could_decide_pct,omitempty"` // by the pilot: the smallest margin that Pairs decide with 90 % power
	Short       bool    `json:"budget_short,omitempty"`     // the budget does not last for WantedPairs
	RunMillis   int64   `json:"run_ms"`                     // of one trial
	WarmMillis  int64   `json:"warm_ms"`                    // before it, not counted
	Published   string  `json:"published_design,omitempty"` // what the publication did where that differs: "20 s after 3 s"
	Steady      *Steady `json:"steady,omitempty"`           // a solid state disk was written until its speed was level
	Batch       *Batch  `json:"batch,omitempty"`            // trials of an arm run one after the other; absent: in turn with the others
}

// Batch is the design against carry-over: several trials of an arm in a row, of which the first, which come after another arm, do
// not count. The datum of a round is the mean of the others.
type Batch struct {
	Trials  int    `json:"trials"`           // of an arm in a row
	Dropped int    `json:"dropped"`          // of these, the first
	Rounds  int    `json:"rounds,omitempty"` // measured so after those in turn, which then do not count; absent: all rounds are
	Why     string `json:"why"`
}

// Steady says whether a disk was in its steady state before the trials.
type Steady struct {
	Criterion string  `json:"criterion"` // fio's steadystate option
	Attained  bool    `json:"attained"`
	Seconds   float64 `json:"seconds"` // written for it
}

// Row is one line of an experiment's table.
type Row struct {
	Name      string             `json:"name"`
	Value     *float64           `json:"value,omitempty"`   // on the axis
	Command   []string           `json:"command,omitempty"` // the same in every arm
	Arms      []ArmMedian        `json:"arms"`
	Compared  []Comparison       `json:"compared"`
	Published []Figure           `json:"published,omitempty"`
	Flags     []Flag             `json:"flags,omitempty"`
	Asked     map[string]float64 `json:"asked,omitempty"` // the values of the arm "asked", the same in each round
	Tried     *Tried             `json:"tried,omitempty"` // of an ingredient: which arms of another experiment show what it costs
}

// ArmMedian holds the medians of an arm's trials that count.
type ArmMedian struct {
	Arm       string             `json:"arm"`
	Trials    int                `json:"trials"`
	Disturbed int                `json:"disturbed,omitempty"` // of these; they are counted too
	Values    map[string]float64 `json:"values"`              // by the measure's name
}

// Comparison is how much worse an arm is than the reference in one measure.
type Comparison struct {
	Arm       string           `json:"arm"`
	Measure   string           `json:"measure"`
	Penalty   *stat.Comparison `json:"penalty"`
	P         float64          `json:"p_differs"`                     // two-sided signed-rank test of no difference
	PEquiv    float64          `json:"p_equivalent"`                  // the larger of the two one-sided tests against the margin
	Corrected stat.Verdict     `json:"verdict_corrected"`             // with Holm's correction over the rows of the table
	Sessions  []float64        `json:"session_penalty_pct,omitempty"` // of each session alone, where there are several
}

// Figure is a published result: of another machine, beside ours to compare with.
type Figure struct {
	Measure    string  `json:"measure"`
	Host       float64 `json:"host,omitempty"`      // in the measure's unit
	Node       float64 `json:"container,omitempty"` // in the measure's unit
	PenaltyPct float64 `json:"penalty_pct"`
	What       string  `json:"what"`          // "LXC, Intel DC P3700, 2015"
	Arm        string  `json:"arm,omitempty"` // the kind of arm that was measured, where an experiment has several: sriov, node, machine
}

// Trial is one trial in one arm. Round 0 is the warm-up, rounds below 0 are the pilot: neither counts.
type Trial struct {
	Head
	Batch      int                `json:"batch,omitempty"` // its place in a batch, from 1
	Session    int                `json:"session"`
	Leg        int                `json:"leg,omitempty"`        // how often the session had been resumed
	Values     map[string]float64 `json:"values,omitempty"`     // absent where it failed
	Conditions *Conditions        `json:"conditions,omitempty"` // absent: they were not recorded
	Disturbed  []string           `json:"disturbed,omitempty"`  // by which parts of the rule: steal, throttled, slow-clock, other-load
}

// Conditions tell what else the machine did during a trial. Values that could not be read are absent.
type Conditions struct {
	CPUMHz    float64  `json:"cpu_mhz,omitempty"`       // mean of all CPUs at the end of the trial
	StealPct  *float64 `json:"steal_pct,omitempty"`     // of all CPUs' time: taken by the hypervisor; nil: the trial was too short to tell
	OtherPct  *float64 `json:"other_cpu_pct,omitempty"` // of all CPUs' time: used by what is not part of the trial; nil as above
	Throttled int64    `json:"throttled,omitempty"`     // times that a CPU got too hot
	DiskTempC float64  `json:"disk_temp_c,omitempty"`   // after it
	CPUTempC  float64  `json:"cpu_temp_c,omitempty"`    // hottest zone, after it
}

// JSON writes the study as one indented document.
func (s *Study) JSON(w io.Writer) error {
	enc := json.NewEncoder(w)
	enc.SetIndent("", " ")
	return enc.Encode(s)
}
