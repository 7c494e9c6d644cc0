// Package shares judges what nodes got of a disk, counted over a number of windows that was fixed before: by all windows
// together, with an interval that has windows as units. Tests use it, and keep the windows as data where a folder is named for it.
package shares

import (
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"berth/internal/bench/result"
	"berth/internal/bench/stat"
)

// Format names the JSON document and its version; docs/bench-json.md describes it.
const Format = "berth-shares/1"

// Folder names the environment variable with the folder in which rows are kept as data: docs/evidence.
const Folder = "BERTH_EVIDENCE"

// The numbers of windows, and how long one of a share is.
const (
	few    = 8  // in a test
	many   = 30 // as data
	window = time.Second
	rate   = 10 * time.Second // of a rate: the kernel's throttle works in slices of 0.1 s
	rates  = 6                // as data; a test has one
)

// Kind says what is asked for.
type Kind string

// The kinds.
const (
	Share     Kind = "share"     // Asked: percent of what all nodes get; judged in points
	Rate      Kind = "rate"      // Asked: bytes a second
	Saturated Kind = "saturated" // Asked: the first node's rate in bytes a second, and its share of all in percent; it is due the lesser
)

// Row is what was asked for, and what was counted.
type Row struct {
	Kind    Kind        `json:"kind"`
	Name    string      `json:"name"` // "bfq, virtio, 40:20:20:20, depth 64"
	Asked   []float64   `json:"asked"`
	Started time.Time   `json:"started"`
	Seconds float64     `json:"window_seconds"`
	Got     [][]float64 `json:"bytes_per_second"`                 // by window, then by node
	Alone   []float64   `json:"alone_bytes_per_second,omitempty"` // one node under the same engine, by window
	// All nodes in windows of their own that take turns with those of Alone; absent: Alone was measured in a row before Got.
	Together []float64 `json:"together_bytes_per_second,omitempty"`
	// The bytes of all nodes without weights, in windows that alternate with those of Got and have the same numbers.
	Unweighed []float64 `json:"without_weights_bytes_per_second,omitempty"`
	Late      float64   `json:"late_waits_pct"`               // of waits of 10 ms, 8 ms late or more: the machine was busy with something else
	Others    float64   `json:"other_programs_pct,omitempty"` // of all CPUs, user time, where it was looked at
}

// Keeps says whether rows are kept as data.
func Keeps() bool { return os.Getenv(Folder) != "" }

// Windows says how many windows a row has, and how long one is.
func Windows(k Kind) (n int, each time.Duration) {
	switch {
	case k == Rate && Keeps():
		return rates, rate
	case k == Rate:
		return 1, rate
	case Keeps():
		return many, window
	}
	return few, window
}

// Part is one figure of a row, in percent.
type Part struct {
	Asked float64
	Got   float64     // of all windows together
	CI95  *[2]float64 // by windows; nil: too few
}

// Parts are a row's figures: each node's share, each rate achieved, or the first node's part of what it is due.
func (r *Row) Parts() []Part {
	if len(r.Got) == 0 {
		return nil
	}
	var all []Part
	n := len(r.Got[0])
	if r.Kind == Saturated {
		n = 1
	}
	for i := range n {
		var got, due []float64
		for _, w := range r.Got {
			got, due = append(got, w[i]), append(due, r.due(w, i))
		}
		p := part(got, due)
		if p.Asked = 100; r.Kind == Share {
			p.Asked = r.Asked[i]
		}
		all = append(all, p)
	}
	return all
}

// due is what the bytes of node i are compared with in a window.
func (r *Row) due(window []float64, i int) float64 {
	switch r.Kind {
	case Rate:
		return r.Asked[i]
	case Saturated:
		return min(r.Asked[0], sum(window)*r.Asked[1]/100)
	}
	return sum(window)
}

// part is what all windows together say, in percent, with an interval that has windows as units.
func part(got, due []float64) (p Part) {
	ratio, ci := stat.RatioOfTotals(got, due)
	if p.Got = 100 * ratio; ci != nil {
		p.CI95 = &[2]float64{100 * ci.Lo, 100 * ci.Hi}
	}
	return p
}

// Lost is how much less all nodes moved than one alone, or than all without weights, in percent of that; ok is false where there was
// none. A window alone is the pair of the window of all nodes that has its number.
func (r *Row) Lost() (p Part, ok bool) {
	all, most := r.Together, slices.Concat(r.Alone, r.Unweighed)
	if all == nil {
		for _, w := range r.Got {
			all = append(all, sum(w))
		}
	}
	n := min(len(all), len(most))
	if n == 0 {
		return p, false
	}
	var less []float64
	for i, whole := range most[:n] {
		less = append(less, whole-all[i])
	}
	return part(less, most[:n]), true
}

// Within says which figures of all windows together lie further than so many points from what was asked, and which are shown
// by their interval to do so. Nothing is measured again.
func (r *Row) Within(points float64) (wrong []string) {
	for i, p := range r.Parts() {
		off := math.Abs(p.Got-p.Asked) > points
		if p.CI95 != nil && (p.CI95[1] < p.Asked-points || p.CI95[0] > p.Asked+points) {
			off = true
		}
		if off {
			wrong = append(wrong, fmt.Sprintf("%s: part %d is %s, asked for %.1f, by %d windows", r.Name, i+1, p.text(), p.Asked, len(r.Got)))
		}
	}
	return wrong
}

// AtLeast is Within where more than was asked for is right too.
func (r *Row) AtLeast(percent float64) (wrong []string) {
	for i, p := range r.Parts() {
		if p.Got < percent || p.CI95 != nil && p.CI95[1] < percent {
			wrong = append(wrong, fmt.Sprintf("%s: part %d is %s, at least %.0f was promised, by %d windows", r.Name, i+1, p.text(), percent, len(r.Got)))
		}
	}
	return wrong
}

func (p Part) text() string {
	if p.CI95 == nil {
		return fmt.Sprintf("%.1f", p.Got)
	}
	return fmt.Sprintf("%.1f (%.1f..%.1f)", p.Got, p.CI95[0], p.CI95[1])
}

// Text is a row in lines for a person, of at most 80 columns.
func (r *Row) Text() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s\n", r.Name)
	for _, p := range r.Parts() {
		fmt.Fprintf(&b, "  %6.1f asked  %-24s\n", p.Asked, p.text())
	}
	if len(r.Got) == 0 {
		return b.String()
	}
	fmt.Fprintf(&b, "  %.2f MB/s in all, %d windows of %g s, %.0f %% of waits late", r.moved()/1e6, len(r.Got), r.Seconds, r.Late)
	if p, ok := r.Lost(); ok {
		fmt.Fprintf(&b, "\n  %s %% less than %s", p.text(), map[bool]string{true: "without weights", false: "one node alone"}[r.Unweighed != nil])
	}
	return b.String() + "\n"
}

// moved is how many bytes a second all nodes moved in all windows.
func (r *Row) moved() (mean float64) {
	for _, w := range r.Got {
		mean += sum(w) / float64(len(r.Got))
	}
	return mean
}

// File is what is kept.
type File struct {
	Format string        `json:"format"`
	Rows   []*Row        `json:"rows"`
	Study  *result.Study `json:"study,omitempty"` // follows from the rows; berth bench report shows it
}

// Keep adds a row to the file of this name in the folder that the environment names, if it names one. A row of the same name
// is replaced.
func (r *Row) Keep(name string) error {
	if !Keeps() {
		return nil
	}
	path := filepath.Join(os.Getenv(Folder), name)
	f, err := Read(path)
	if err != nil && !os.IsNotExist(err) {
		return err
	}
	f.Rows = append(slices.DeleteFunc(f.Rows, func(o *Row) bool { return o.Name == r.Name }), r)
	f.Study = f.study()
	text, err := json.MarshalIndent(f, "", " ")
	if err != nil {
		return err
	}
	return os.WriteFile(path, append(text, '\n'), 0o644)
}

// Read reads a file; one that is not there has no rows, and an error.
func Read(path string) (*File, error) {
	f := &File{Format: Format}
	text, err := os.ReadFile(path)
	if err != nil {
		return f, err
	}
	if err := json.Unmarshal(text, f); err != nil {
		return f, fmt.Errorf("%s: %w", path, err)
	}
	if f.Format != Format {
		return f, fmt.Errorf("%s: format %q: want %q", path, f.Format, Format)
	}
	return f, nil
}

func sum(list []float64) (all float64) {
	for _, v := range list {
		all += v
	}
	return all
}
