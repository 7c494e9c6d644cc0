package host

import (
	"strings"

	"berth/internal/sys/refuse"
)

// State is the result of a check. Each state other than OK needs a different kind of remedy.
type State string

// The states.
const (
	OK     State = "ok"
	Lacks  State = "lacks"  // not there: not built, not installed, no such hardware
	Off    State = "off"    // there, but switched off, not loaded, or set differently
	Broken State = "broken" // there and on, but it does not work, or is known to be unsafe
)

// Check is one requirement of Berth on a host, and its result. It is data; Text and Brief print it.
type Check struct {
	Area      string `json:"area"` // heading under which it is printed
	Name      string `json:"name"`
	State     State  `json:"state"`
	Found     string `json:"found"`
	Wanted    string `json:"wanted,omitempty"` // empty if Found says enough
	Why       string `json:"why"`              // what a user loses without it
	Remedy    string `json:"remedy,omitempty"` // shell commands to paste, one per line; empty if there is none
	Mandatory bool   `json:"mandatory"`        // no node runs without it
}

// Missing returns the mandatory checks that are not ok.
func Missing(checks []Check) []Check {
	var m []Check
	for _, c := range checks {
		if c.Mandatory && c.State != OK {
			m = append(m, c)
		}
	}
	return m
}

// Refusal returns nil if nothing mandatory is missing, else an error that says why this host cannot run nodes (exit 3).
func Refusal(checks []Check) error {
	missing := Missing(checks)
	if len(missing) == 0 {
		return nil
	}
	names := make([]string, len(missing))
	for i, c := range missing {
		names[i] = c.Name
	}
	return refuse.Cannotf("berth doctor says what to do", "this host cannot run nodes: %s", strings.Join(names, ", "))
}
