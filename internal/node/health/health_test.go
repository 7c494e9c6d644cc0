package health

import (
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"pgregory.net/rapid"

	"berth/internal/spec/vnode"
)

func TestNext(t *testing.T) {
	t.Parallel()
	period := vnode.Duration(10 * time.Second)
	of := &vnode.Health{Command: []string{"c"}, Retries: 2, StartPeriod: &period}
	began := time.Unix(1000, 0)
	h := Health{State: Starting, Since: began}
	for i, c := range []struct {
		after    time.Duration
		failed   bool
		state    string
		failures int
	}{
		{time.Second, true, Starting, 0},
		{9 * time.Second, true, Starting, 0},
		{11 * time.Second, true, Starting, 1},
		{12 * time.Second, true, Unhealthy, 2},
		{13 * time.Second, true, Unhealthy, 3},
		{14 * time.Second, false, Healthy, 0},
		{15 * time.Second, true, Healthy, 1},
		{16 * time.Second, false, Healthy, 0},
		{17 * time.Second, true, Healthy, 1},
		{18 * time.Second, true, Unhealthy, 2},
	} {
		was := h
		h = h.Next(of, c.failed, "words", began, began.Add(c.after))
		if h.State != c.state || h.Failures != c.failures || (h.Output == "words") != c.failed {
			t.Fatalf("check %d: %+v, want %s with %d failures", i, h, c.state, c.failures)
		}
		if (h.State == was.State) != h.Since.Equal(was.Since) {
			t.Fatalf("check %d: since %s, was %s", i, h.Since, was.Since)
		}
	}
}

// TestNextProperties checks for any checks: unhealthy means at least that many failures in a row after the start period, and a
// success is always healthy.
func TestNextProperties(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		of := &vnode.Health{Command: []string{"c"}, Retries: rapid.IntRange(0, 4).Draw(t, "retries")}
		h, row := Health{State: Starting}, 0
		for i, failed := range rapid.SliceOfN(rapid.Bool(), 0, 20).Draw(t, "failed") {
			h = h.Next(of, failed, "", time.Time{}, time.Unix(int64(i), 0))
			if row++; !failed {
				row = 0
			}
			if h.Failures != row || (h.State == Unhealthy) != (row >= of.Most()) && !(h.State == Unhealthy && row > 0) || !failed && h.State != Healthy {
				t.Fatalf("%d failures in a row: %+v", row, h)
			}
		}
	})
}

// TestTail checks that a check cannot fill the keeper's memory.
func TestTail(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		var out tail
		all := ""
		for _, p := range rapid.SliceOfN(rapid.StringN(0, 3000, 9000), 0, 9).Draw(t, "writes") {
			if n, err := out.Write([]byte(p)); n != len(p) || err != nil {
				t.Fatal(n, err)
			}
			all += p
		}
		if got := out.text.String(); len(got) > longestTail || !strings.HasSuffix(all, got) || len(got) < min(len(all), longestTail) {
			t.Fatalf("%d of %d bytes kept", len(got), len(all))
		}
	})
}

func TestLastLine(t *testing.T) {
	t.Parallel()
	for output, want := range map[string]string{"": "", "a\nb\n\n": "b", "a\x1b[1m": "a [1m", "\xff": "?", strings.Repeat("é", 200): strings.Repeat("é", 100)} {
		if got := LastLine([]byte(output)); got != want || !utf8.ValidString(got) {
			t.Errorf("%q: %q, want %q", output, got, want)
		}
	}
}
