package plot

import (
	"math"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

func TestTicks(t *testing.T) {
	for _, c := range []struct {
		name string
		got  []float64
		want []float64
	}{
		{"penalties", linearTicks(-3.2, 47.9, 5), []float64{-20, 0, 20, 40, 60}},
		{"small", linearTicks(0.11, 0.19, 5), []float64{0.1, 0.12, 0.14, 0.16, 0.18, 0.2}},
		{"one value", linearTicks(100, 100, 5), []float64{90, 95, 100, 105, 110}},
		{"nothing but 0", linearTicks(0, 0, 5), []float64{-1, -0.5, 0, 0.5, 1}},
		{"a decade", logTicks(430, 1300, 5), []float64{200, 500, 1000, 2000}},
		{"four decades", logTicks(933, 1.08e6, 5), []float64{100, 1000, 1e4, 1e5, 1e6, 1e7}},
		{"one value, logarithmic", logTicks(100, 100, 5), []float64{100, 200}},
	} {
		if d := cmp.Diff(c.want, c.got); d != "" {
			t.Errorf("%s (-want +got):\n%s", c.name, d)
		}
	}
}

// checkTicks checks that ticks cover lo to hi, ascend, are not too many, and have different labels.
func checkTicks(t *rapid.T, ticks []float64, lo, hi float64, most int) {
	if len(ticks) < 2 || len(ticks) > most {
		t.Fatalf("%d ticks: %v", len(ticks), ticks)
	}
	if slack := 1e-8 * math.Max(math.Abs(lo), math.Abs(hi)); ticks[0] > lo+slack || ticks[len(ticks)-1] < hi-slack {
		t.Fatalf("%v does not cover %g to %g", ticks, lo, hi)
	}
	labels := map[string]bool{}
	for i, v := range ticks {
		if i > 0 && v <= ticks[i-1] {
			t.Fatalf("not ascending: %v", ticks)
		}
		labels[Plain(v)] = true
	}
	if len(labels) != len(ticks) {
		t.Fatalf("%d labels for %v", len(labels), ticks)
	}
}

func TestLinearTicksCover(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		lo := rapid.Float64Range(-1e9, 1e9).Draw(t, "lo")
		width := math.Pow(10, rapid.Float64Range(-2, 9).Draw(t, "decade")) * math.Max(math.Abs(lo)*1e-3, 1e-6)
		wanted := rapid.IntRange(2, 8).Draw(t, "wanted")
		checkTicks(t, linearTicks(lo, lo+width, wanted), lo, lo+width, wanted+3)
	})
}

func TestLogTicksCover(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		lo := math.Pow(10, rapid.Float64Range(-9, 9).Draw(t, "lo"))
		hi := lo * math.Pow(10, rapid.Float64Range(0, 12).Draw(t, "decades"))
		wanted := rapid.IntRange(2, 8).Draw(t, "wanted")
		checkTicks(t, logTicks(lo, hi, wanted), lo, hi, max(wanted+2, 4)+1)
	})
}

func TestLabels(t *testing.T) {
	for _, c := range []struct{ got, want string }{
		{Plain(0.30000000000000004), "0.3"},
		{Plain(-20), "−20"},
		{Plain(-1e-300 * 1e-300), "0"},
		{Thousands(1500), "1.5k"},
		{Thousands(2e6), "2M"},
		{Thousands(-5e9), "−5G"},
		{Thousands(0.5), "0.5"},
		{Bytes(512), "512"},
		{Bytes(4096), "4K"},
		{Bytes(1 << 20), "1M"},
		{Bytes(1536), "1.5K"},
	} {
		if c.got != c.want {
			t.Errorf("%q, want %q", c.got, c.want)
		}
	}
}
