package text

import (
	"testing"
	"time"
)

func TestWhen(t *testing.T) {
	zone := time.FixedZone("X", 2*3600)
	now := time.Date(2026, 3, 4, 12, 0, 0, 0, zone)
	for s, want := range map[string]string{
		"10m":                       "2026-03-04T11:50:00+02:00",
		"11:30":                     "2026-03-04T11:30:00+02:00",
		"11:30:05":                  "2026-03-04T11:30:05+02:00",
		"2026-03-01":                "2026-03-01T00:00:00+02:00",
		"2026-03-01 10:00":          "2026-03-01T10:00:00+02:00",
		"2026-03-01 10:00:01":       "2026-03-01T10:00:01+02:00",
		"2026-03-01T10:00:01.5Z":    "2026-03-01T10:00:01.5Z",
		"2026-03-01T10:00:01+01:00": "2026-03-01T10:00:01+01:00",
		"yesterday":                 "", "": "", "@x": "", "25:00": "",
	} {
		got, err := When(s, now)
		if want == "" {
			if err == nil {
				t.Errorf("%q: %v", s, got)
			}
			continue
		}
		if w, _ := time.Parse(time.RFC3339Nano, want); err != nil || !got.Equal(w) {
			t.Errorf("%q: %v, %v; want %v", s, got, err, w)
		}
	}
	if got, err := When("@1700000000", now); err != nil || got.Unix() != 1700000000 {
		t.Errorf("seconds: %v, %v", got, err)
	}
}
