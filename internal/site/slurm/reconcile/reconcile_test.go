package reconcile

import (
	"strings"
	"testing"

	"berth/internal/site/slurm/control"
)

// TestColdest: as many nodes are asked for as are missing of those that wait for a job, and none that an admin took out of service.
func TestColdest(t *testing.T) {
	for _, c := range []struct {
		states string
		warm   int
		want   string
	}{
		{"IDLE+CLOUD+POWERED_DOWN IDLE+CLOUD+POWERED_DOWN", 1, "a"},
		{"IDLE+CLOUD+POWERED_DOWN IDLE+CLOUD+POWERED_DOWN", 5, "a b"},
		{"IDLE+CLOUD+POWERED_DOWN IDLE+CLOUD", 1, ""},
		{"IDLE+CLOUD+POWERED_DOWN IDLE+CLOUD+POWERING_UP IDLE+CLOUD+POWERED_DOWN", 2, "a"},
		{"IDLE+CLOUD+POWERED_DOWN+POWER_UP IDLE+CLOUD+POWERED_DOWN", 1, ""},
		{"ALLOCATED+CLOUD IDLE+CLOUD+POWERED_DOWN", 1, "b"},
		{"IDLE+CLOUD+POWERING_DOWN IDLE+CLOUD+POWERED_DOWN", 1, "b"},
		{"IDLE+CLOUD+DRAIN+POWERED_DOWN DOWN+CLOUD+POWERED_DOWN", 1, ""},
		{"IDLE+CLOUD+POWERED_DOWN", 0, ""},
		{"IDLE+CLOUD IDLE+CLOUD IDLE+CLOUD+POWERED_DOWN", 1, ""},
	} {
		var known []control.Node
		for i, state := range strings.Fields(c.states) {
			known = append(known, control.Node{Name: string(rune('a' + i)), State: strings.Split(state, "+")})
		}
		if got := strings.Join(coldest(known, c.warm), " "); got != c.want {
			t.Errorf("%s, %d wanted: %q, not %q", c.states, c.warm, got, c.want)
		}
	}
}

// TestRests: Slurm is told that a node is idle only where nothing else is under way with it.
func TestRests(t *testing.T) {
	for states, want := range map[string]bool{
		"IDLE+CLOUD+POWERED_DOWN":                true,
		"IDLE+CLOUD+POWERED_DOWN+PLANNED":        true,
		"IDLE+CLOUD":                             false,
		"IDLE+CLOUD+POWERING_DOWN":               false,
		"IDLE+CLOUD+POWERED_DOWN+POWER_UP":       false,
		"IDLE+CLOUD+POWERED_DOWN+NOT_RESPONDING": false, // see deaf
		"IDLE+CLOUD+DRAIN+POWERED_DOWN":          false,
		"DOWN+CLOUD+POWERED_DOWN":                false,
		"ALLOCATED+CLOUD+POWERED_DOWN":           false,
	} {
		if got := rests(control.Node{Name: "a", State: strings.Split(states, "+")}); got != want {
			t.Errorf("%s: %v, not %v", states, got, want)
		}
	}
}
