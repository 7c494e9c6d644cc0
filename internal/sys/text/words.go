package text

import (
	"fmt"
	"time"
)

// OrDash returns s, or a dash if it is empty.
func OrDash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}

// Shorten cuts off the beginning of a text that has more characters than most.
func Shorten(s string, most int) string {
	r := []rune(s)
	if len(r) <= most {
		return s
	}
	return "…" + string(r[len(r)-most+1:])
}

// Ago writes how long ago t was, in its largest unit.
func Ago(t time.Time) string {
	if t.IsZero() {
		return "-"
	}
	d := time.Since(t)
	switch {
	case d < time.Minute:
		return fmt.Sprintf("%ds", int(d.Seconds()))
	case d < time.Hour:
		return fmt.Sprintf("%dm", int(d.Minutes()))
	case d < 48*time.Hour:
		return fmt.Sprintf("%dh", int(d.Hours()))
	}
	return fmt.Sprintf("%dd", int(d.Hours()/24))
}

// Count writes a number of things: "1 node", "2 nodes".
func Count(n int, what string) string {
	return fmt.Sprintf("%d %s%s", n, what, Either(n == 1, "", "s"))
}

// Human writes a size with at most one decimal.
func Human(n int64) string {
	for _, u := range []struct {
		size int64
		name string
	}{{1 << 40, "TiB"}, {1 << 30, "GiB"}, {1 << 20, "MiB"}, {1 << 10, "KiB"}} {
		if n >= u.size {
			return fmt.Sprintf("%.1f %s", float64(n)/float64(u.size), u.name)
		}
	}
	return fmt.Sprintf("%d B", n)
}

// Either returns yes if cond is true, else no.
func Either(cond bool, yes, no string) string {
	if cond {
		return yes
	}
	return no
}
