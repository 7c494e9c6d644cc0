package text

import (
	"fmt"
	"strconv"
	"strings"
	"time"
)

// When reads a moment as people write it: "10m" (so long before now), "15:04", "15:04:05" (today), "2006-01-02",
// "2006-01-02 15:04", a time of RFC 3339, "@1700000000" (seconds since 1970). Without a zone it is local time.
func When(s string, now time.Time) (time.Time, error) {
	if d, err := time.ParseDuration(s); err == nil {
		return now.Add(-d), nil
	}
	if n, found := strings.CutPrefix(s, "@"); found {
		if sec, err := strconv.ParseInt(n, 10, 64); err == nil {
			return time.Unix(sec, 0), nil
		}
	}
	for _, form := range []string{"15:04", "15:04:05"} {
		if t, err := time.ParseInLocation(form, s, now.Location()); err == nil {
			y, m, d := now.Date()
			return time.Date(y, m, d, t.Hour(), t.Minute(), t.Second(), 0, now.Location()), nil
		}
	}
	for _, form := range []string{time.DateOnly, "2006-01-02 15:04", time.DateTime, "2006-01-02T15:04", "2006-01-02T15:04:05", time.RFC3339Nano} {
		if t, err := time.ParseInLocation(form, s, now.Location()); err == nil {
			return t, nil
		}
	}
	return time.Time{}, fmt.Errorf("%q is no time, for example 10m (ago), 15:04, %q or 2006-01-02T15:04:05Z", s, "2006-01-02 15:04")
}
