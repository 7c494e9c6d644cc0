package suggest_test

import (
	"strings"
	"testing"

	"berth/internal/sys/suggest"
)

func TestTo(t *testing.T) {
	t.Parallel()
	keys := []string{"cpu.weight", "cpu.max", "cpu.set", "memory.max", "pids", "restart"}
	for word, want := range map[string]string{
		"cpu.maximum":            "cpu.max", // four letters more
		"memory":                 "memory.max",
		"pidspidspids":           "",
		"cpu.mxa":                "cpu.max",
		"maximum":                "",
		"mem.max":                "memory.max",
		"pid":                    "pids",
		"PIDS":                   "",
		"res":                    "restart", // the only one that begins so
		"cpu.":                   "",        // three begin so
		"p":                      "",        // too short to tell
		"":                       "",
		"disk":                   "",
		strings.Repeat("x", 400): "",
	} {
		if got := suggest.To(word, keys); got != want {
			t.Errorf("%q: %q, want %q", word, got, want)
		}
	}
}
