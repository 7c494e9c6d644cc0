package shares

import (
	"math"
	"math/rand/v2"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// row is one of windows whose shares scatter about what the disk gives, by so many percent.
func row(windows int, scatter float64, gives ...float64) *Row {
	r := &Row{Kind: Share, Name: "x", Asked: []float64{40, 20, 20, 20}, Seconds: 1}
	random := rand.New(rand.NewPCG(1, 2))
	for range windows {
		var w []float64
		for _, v := range gives {
			w = append(w, 1e5*v*math.Exp(scatter/100*random.NormFloat64()))
		}
		r.Got = append(r.Got, w)
	}
	return r
}

// TestWithin: all windows count. A disk that gives other shares is found out though single windows fit, one that gives what
// was asked is not, though single windows miss.
func TestWithin(t *testing.T) {
	fits := func(r *Row) (n int) {
		for _, w := range r.Got {
			one := &Row{Kind: Share, Asked: r.Asked, Got: [][]float64{w}}
			if len(one.Within(5)) == 0 {
				n++
			}
		}
		return n
	}
	bad := row(8, 20, 47, 17.7, 17.7, 17.7)
	if n := fits(bad); n == 0 || n == 8 {
		t.Fatalf("%d of 8 windows fit: the case shows nothing", n)
	}
	if len(bad.Within(5)) == 0 {
		t.Errorf("47 %% for 40 is let pass:\n%s", bad.Text())
	}
	good := row(8, 15, 40, 20, 20, 20)
	if n := fits(good); n == 8 {
		t.Fatal("all windows fit: the case shows nothing")
	}
	if wrong := good.Within(5); len(wrong) > 0 {
		t.Errorf("what was asked for is called wrong: %v", wrong)
	}
}

func TestFigures(t *testing.T) {
	r := &Row{Kind: Rate, Asked: []float64{10e6, 2e6}, Got: [][]float64{{10.1e6, 1.9e6}, {9.9e6, 1.9e6}}}
	if got := r.Parts(); math.Abs(got[0].Got-100) > 1e-9 || math.Abs(got[1].Got-95) > 1e-9 || got[0].CI95 != nil {
		t.Errorf("rates: %+v", got)
	}
	if wrong := r.Within(2); len(wrong) != 1 {
		t.Errorf("within 2 %%: %v", wrong)
	}
	// 8 MB/s asked, half of all due: of 11.2 MB/s that is 5.6, of 20 it is the rate.
	r = &Row{Kind: Saturated, Asked: []float64{8e6, 50}, Got: [][]float64{{5.6e6, 2e6, 2e6, 1.6e6}}}
	if got := r.Parts(); len(got) != 1 || math.Abs(got[0].Got-100) > 1e-9 {
		t.Errorf("its share: %+v", got)
	}
	r.Got = [][]float64{{5e6, 5e6, 5e6, 5e6}}
	if got := r.Parts(); math.Abs(got[0].Got-62.5) > 1e-9 || len(r.AtLeast(90)) != 1 {
		t.Errorf("its rate: %+v", got)
	}
	r = row(8, 0, 40, 20, 20, 20)
	r.Alone = []float64{1e7, 1e7, 1e7, 1e7, 1e7, 1e7, 1e7, 1e7}
	if p, ok := r.Lost(); !ok || math.Abs(p.Got) > 1e-9 {
		t.Errorf("lost: %+v", p)
	}
	r.Unweighed, r.Alone = []float64{2e7, 2e7, 2e7, 2e7, 2e7, 2e7, 2e7, 2e7}, nil
	if p, ok := r.Lost(); !ok || math.Abs(p.Got-50) > 1e-9 || !strings.Contains(r.Text(), "50.0 (50.0..50.0) % less than without weights") {
		t.Errorf("lost by weights: %+v\n%s", p, r.Text())
	}
}

// TestStandstill: a window in which nothing moves counts in what was moved, and is no share.
func TestStandstill(t *testing.T) {
	r := row(9, 5, 40, 20, 20, 20)
	r.Got[4] = []float64{0, 0, 0, 0}
	r.Alone = []float64{1e7, 0, 1e7, 1e7, 1e7, 1e7, 1e7, 1e7, 1e7}
	for _, p := range r.Parts() {
		if p.CI95 == nil || !(p.CI95[0] < p.Got && p.Got < p.CI95[1]) {
			t.Errorf("%+v %v", p, p.CI95)
		}
	}
	if p, _ := r.Lost(); p.CI95 == nil || math.IsInf(p.CI95[0], 0) || math.IsNaN(p.CI95[1]) {
		t.Errorf("lost: %+v %v", p, p.CI95)
	}
}

// TestIntervalOfFigure: a figure and its interval are of one quantity, whatever the windows are: a share that is pooled beside
// the interval of a window's median was once outside of it.
func TestIntervalOfFigure(t *testing.T) {
	for seed := range uint64(200) {
		random := rand.New(rand.NewPCG(seed, 3))
		r := &Row{Kind: Share, Asked: []float64{50, 50}}
		for range 8 {
			speed := math.Exp(random.NormFloat64())
			r.Got = append(r.Got, []float64{speed * (1 + 4*random.Float64()), speed})
			r.Alone = append(r.Alone, 3*speed*random.Float64())
		}
		lost, _ := r.Lost()
		for _, p := range append(r.Parts(), lost) {
			if p.CI95 == nil || p.Got < p.CI95[0] || p.CI95[1] < p.Got {
				t.Fatalf("%v is not in %v", p.Got, p.CI95)
			}
		}
	}
}

// TestKeep: rows come back as they were, and one that is measured again replaces the earlier one.
func TestKeep(t *testing.T) {
	dir := t.TempDir()
	t.Setenv(Folder, dir)
	if n, _ := Windows(Share); n != many {
		t.Errorf("%d windows are kept as data", n)
	}
	r := row(8, 10, 40, 20, 20, 20)
	for _, one := range []*Row{row(3, 10, 40, 20, 20, 20), r} {
		if err := one.Keep("shares.json"); err != nil {
			t.Fatal(err)
		}
	}
	f, err := Read(filepath.Join(dir, "shares.json"))
	if err != nil || len(f.Rows) != 1 {
		t.Fatalf("%d rows, %v", len(f.Rows), err)
	}
	if d := cmp.Diff(r, f.Rows[0]); d != "" {
		t.Error(d)
	}
	for line := range strings.Lines(r.Text()) {
		if len(line) > 81 {
			t.Errorf("longer than 80 columns: %s", line)
		}
	}
}
