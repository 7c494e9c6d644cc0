package stat

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"pgregory.net/rapid"
)

// Intervals and p-values are two ways to say one thing, for any sample, ties included.
func TestPValuesAreTheIntervals(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		step := rapid.SampledFrom([]float64{0, .01, .1}).Draw(t, "step")
		d := rapid.SliceOfN(rapid.Map(rapid.Float64Range(-.3, .4), func(v float64) float64 {
			if step > 0 {
				v = math.Round(v/step) * step
			}
			return v
		}), MinPairs, 25).Draw(t, "d")
		margin := LogMargin(rapid.Float64Range(.1, 50).Draw(t, "margin"))
		e := NewEstimate(d)
		if p, excludes := Differs(d), e.I95.Lo > 0 || e.I95.Hi < 0; (p <= .05) != excludes {
			t.Fatalf("p %v, interval %+v", p, *e.I95)
		}
		if p, inside := NotEquivalent(d, margin), Decide(e, margin) == Equivalent; (p <= .05) != inside {
			t.Fatalf("p %v, interval %+v, margin %v", p, *e.I90, margin)
		}
		if p := Differs(d); p < 0 || p > 1 {
			t.Fatalf("p is %v", p)
		}
	})
}

func TestSignedRankP(t *testing.T) {
	// Hollander, Wolfe and Chicken, table A.4: n = 8, P(T ≥ 31) = .039; n = 6, P(T ≥ 21) = .016; n = 12, P(T ≥ 61) = .046.
	for _, c := range []struct {
		n, t int
		want float64
	}{{8, 31, .0390625}, {6, 21, .015625}, {12, 61, .046143}, {6, 22, 0}, {6, 0, 1}} {
		if got := signedRankP(c.n, c.t); math.Abs(got-c.want) > 1e-6 {
			t.Errorf("%d pairs, %d: %v, want %v", c.n, c.t, got, c.want)
		}
	}
	if exact, normal := signedRankP(200, 11000), signedRankP(201, 11000+101); math.Abs(exact-normal) > .01 {
		t.Errorf("the normal approximation does not go on where the exact distribution ends: %v %v", exact, normal)
	}
}

// Worked by hand: .01·4, .02·3, .03·2, then .04, which must not fall below the one before.
func TestHolm(t *testing.T) {
	got := Holm([]float64{.04, .01, .03, .02})
	if d := cmp.Diff([]float64{.06, .04, .06, .06}, got, cmpopts.EquateApprox(0, 1e-12)); d != "" {
		t.Error(d)
	}
	if d := cmp.Diff([]float64{1, 1}, Holm([]float64{.6, .9})); d != "" {
		t.Error(d)
	}
	if len(Holm(nil)) != 0 {
		t.Error("an empty table")
	}
}

// TestHolmOverTables checks that of whole tables without a difference at most one in twenty has a row that is called worse or
// better after the correction; without it far more have. Rows of a table share their noise, as those of a run do.
func TestHolmOverTables(t *testing.T) {
	const tables, rows, pairs = 2000, 8, 12
	r := rand.New(rand.NewPCG(2015, 8))
	for _, n := range noises()[:2] {
		raw, adjusted := 0, 0
		for range tables {
			shared := simulate(r, n, pairs, 0)
			p := make([]float64, rows)
			least := 1.
			for i := range p {
				d := simulate(r, n, pairs, 0)
				for j := range d {
					d[j] += shared[j] / 2
				}
				p[i] = Differs(d)
				least = min(least, p[i])
			}
			count(&raw, least <= .05)
			for _, q := range Holm(p) {
				if q <= .05 {
					adjusted++
					break
				}
			}
		}
		t.Logf("%s: %d of %d tables have a false alarm, %d after the correction", n.name, raw, tables, adjusted)
		if limit := tables/20 + 30; adjusted > limit || raw < 3*adjusted {
			t.Errorf("%d of %d tables have a false alarm, %d after the correction", raw, tables, adjusted)
		}
	}
}
