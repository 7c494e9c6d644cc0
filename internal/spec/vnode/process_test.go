package vnode

import (
	"testing"
	"time"

	"pgregory.net/rapid"
)

func TestParseSignal(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]int{
		"TERM": 15, "SIGTERM": 15, "term": 15, "15": 15, "SIGRTMIN+3": 37, "RTMIN": 34, "RTMAX": 64, "RTMAX-1": 63, "37": 37, "1": 1, "WINCH": 28,
		"": 0, "0": 0, "-1": 0, "32": 0, "33": 0, "65": 0, "RTMIN-1": 0, "RTMIN+31": 0, "RTMIN+": 0, "RTMAX+1": 0, "RTMAX-31": 0, "SIG": 0, "NOT": 0, "15x": 0,
	} {
		got, err := ParseSignal(text)
		if int(got) != want || (err != nil) != (want == 0) {
			t.Errorf("%q: %d, %v; want %d", text, got, err, want)
		}
	}
}

func TestParseDuration(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"10s": "10s", "90s": "1m30s", "2m": "2m", "1h": "1h", "1h0m1s": "1h0m1s", "500ms": "500ms", "0s": "0s", "1.5s": "1.5s", "168h": "168h",
		"": "", "10": "", "0": "", "-1s": "", "169h": "", "1us": "", "1d": "", "s": "", "1 s": "",
	} {
		got, err := ParseDuration(text)
		if (err != nil) != (want == "") || err == nil && got.String() != want {
			t.Errorf("%q: %s, %v; want %q", text, got, err, want)
		}
	}
	rapid.Check(t, func(t *rapid.T) {
		d := Duration(rapid.Int64Range(0, int64(longestDuration/time.Millisecond)).Draw(t, "ms")) * Duration(time.Millisecond)
		if again, err := ParseDuration(d.String()); err != nil || again != d {
			t.Fatalf("%d: written %s, read %d, %v", d, d, again, err)
		}
	})
}
