package side

import (
	"context"
	"errors"
	"math"
	"testing"
	"time"
)

// How far a guest's clock may be off follows from both readings and from how long each took.
func TestGuestClock(t *testing.T) {
	begin := time.Now()
	at := func(guest, from, to float64) ClockReading {
		return ClockReading{guest, begin.Add(time.Duration(from * 1e9)), begin.Add(time.Duration(to * 1e9))}
	}
	for _, c := range []struct {
		name          string
		before, after ClockReading
		low, high     float64
	}{
		{"right", at(5, 0, 1), at(105, 100, 101), -.99 - .0099, 1.01 + .0101},
		{"a tenth fast", at(5, 0, 0), at(115, 100, 100), 9.99, 10.01},
		{"half as fast", at(5, 0, 0), at(55, 100, 100), -50.01, -49.99},
	} {
		low, high := c.after.FastPct(c.before)
		if math.Abs(low-c.low) > .01 || math.Abs(high-c.high) > .01 {
			t.Errorf("%s: %v to %v, want %v to %v", c.name, low, high, c.low, c.high)
		}
	}
}

func TestReadClock(t *testing.T) {
	for _, c := range []struct {
		said string
		err  error
		want float64 // 0: an error
	}{{"12.34 20.00\n", nil, 12.34}, {"none\n", nil, 0}, {"", nil, 0}, {"", errors.New("no machine"), 0}} {
		r, err := ReadClock(t.Context(), func(context.Context, []string) ([]byte, error) { return []byte(c.said), c.err })
		if (err != nil) != (c.want == 0) || err == nil && (r.Guest != c.want || r.To.Before(r.From)) {
			t.Errorf("%q: %+v %v", c.said, r, err)
		}
	}
}
