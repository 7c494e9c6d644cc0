package report

import (
	"fmt"
	"math"
	"strconv"
	"strings"

	"berth/internal/bench/stat"
)

// figure prints a number with three significant digits, and all digits before the point in groups of three.
func figure(v float64) string {
	a := math.Abs(v)
	decimals := 0
	switch {
	case math.IsNaN(v) || math.IsInf(v, 0):
		return "-"
	case a < 1e-9: // no measurement is that small
		return "0"
	case a < 0.0995:
		return strings.Replace(strconv.FormatFloat(v, 'g', 2, 64), "-", "−", 1)
	case a < 9.995:
		decimals = 2
	case a < 99.95:
		decimals = 1
	}
	s := strconv.FormatFloat(a, 'f', decimals, 64)
	whole, rest, _ := strings.Cut(s, ".")
	if len(whole) > 15 { // unreadable in full
		return strings.Replace(fmt.Sprintf("%.3g", v), "-", "−", 1)
	}
	for i := len(whole) - 3; i > 0; i -= 3 {
		whole = whole[:i] + "\u202f" + whole[i:]
	}
	if rest != "" {
		whole += "." + rest
	}
	if v < 0 {
		return "−" + whole
	}
	return whole
}

// percent prints a margin as it was given: 5, 2.5.
func percent(v float64) string { return strconv.FormatFloat(v, 'g', 6, 64) }

// signed prints a percentage with its sign in at most 5 columns: +0.3, −12.4, +778.
func signed(v float64) string {
	a := math.Abs(v)
	var s string
	switch {
	case math.IsNaN(a) || math.IsInf(a, 0):
		return "-"
	case a < 99.95:
		s = fmt.Sprintf("%.1f", a)
	case a < 9999.5:
		s = fmt.Sprintf("%.0f", a)
	case a < 999.5e3:
		s = fmt.Sprintf("%.0fk", a/1e3)
	default:
		s = ">1M"
	}
	switch {
	case s == "0.0":
		return s
	case v < 0:
		return "−" + s
	}
	return "+" + s
}

// interval prints the 95 % interval of a comparison.
func interval(c *stat.Comparison) string {
	switch {
	case c == nil:
		return "-"
	case c.CI95Pct == nil:
		return "too few pairs"
	}
	return signed(c.CI95Pct[0]) + " to " + signed(c.CI95Pct[1])
}

func couldOf(c *stat.Comparison) string {
	if c == nil || c.Could == nil {
		return "-"
	}
	return figure(*c.Could)
}

// printable replaces control characters and bidirectional controls in a finished text: the JSON is not trusted.
func printable(s string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r == '\n':
			return r
		case r < ' ', r >= 0x7f && r < 0xa0, r >= 0x202a && r <= 0x202e, r >= 0x2066 && r <= 0x2069:
			return '·'
		}
		return r
	}, strings.ToValidUTF8(s, "·"))
}
