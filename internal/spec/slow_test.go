package spec

import (
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"berth/test/testkit"
)

// TestHostileSize bounds the CPU time for files that are slow for the YAML scanner. They take well under a second; the
// bound allows for slow machines.
func TestHostileSize(t *testing.T) {
	t.Parallel()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	head := "name: a\nimage: dir:/srv/root\nhostname: |\n  "
	for name, text := range map[string]string{
		"literal with many lines": head + strings.Repeat("x ", (longestDocument-len(head)-mostLines)/2) + strings.Repeat("\n", mostLines-10),
		"literal, long lines":     head + strings.Repeat(strings.Repeat("x", 30)+"\n  ", mostLines-10),
		"quotes":                  strings.Repeat(`"`, longestDocument),
		"brackets":                "command: " + strings.Repeat("[],", longestDocument/3-9),
		"keys":                    strings.Repeat("a: 1\n", mostLines),
		"nested blocks":           strings.Repeat("- ", longestDocument/2),
		"too long":                strings.Repeat("\n", LongestFile),
		"too large":               strings.Repeat("x", LongestFile+1),
		"documents":               strings.Repeat("---\n", LongestFile/4),
	} {
		most := testkit.Bound()
		if testkit.Measures() {
			most = 10 * time.Second
		}
		before := cpuTime(t)
		_, err := Parse("hostile.yaml", []byte(text))
		if took := cpuTime(t) - before; err == nil || took > most {
			t.Errorf("%s: error %v after %s", name, err, took)
		} else {
			t.Logf("%s: %s", name, took.Round(time.Millisecond))
		}
	}
}

// cpuTime returns what this thread has used.
func cpuTime(t *testing.T) time.Duration {
	t.Helper()
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_THREAD, &u); err != nil {
		t.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
