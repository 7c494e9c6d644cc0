package spec

import (
	"strings"
	"testing"
	"time"
)

// TestHostileSize bounds the time for files that are slow for the YAML scanner. They take well under a second; the
// bound allows for busy machines.
func TestHostileSize(t *testing.T) {
	t.Parallel()
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
		started := time.Now()
		_, err := Parse("hostile.yaml", []byte(text))
		if took := time.Since(started); err == nil || took > 10*time.Second {
			t.Errorf("%s: error %v after %s", name, err, took)
		} else {
			t.Logf("%s: %s", name, took.Round(time.Millisecond))
		}
	}
}
