// Package health runs the health checks of nodes for the keeper, and keeps what they found.
//
// A check is a program of its own, a berth that runs one command in the node as berth exec does. So a keeper that is killed or
// becomes another program leaves nothing half done: the check ends by its own timeout, and the next keeper begins again.
package health

import (
	"strings"
	"time"

	"berth/internal/node/events"
	"berth/internal/spec/vnode"
)

// The states of a node's health.
const (
	Starting  = "starting"       // no check has succeeded yet, and fewer failed than make it unhealthy
	Healthy   = events.Healthy   // a check has succeeded, and fewer failed since than make it unhealthy
	Unhealthy = events.Unhealthy // so many checks failed in a row as the spec says
)

// Health is the result of the checks of a running node.
type Health struct {
	State    string    `json:"state"`
	Failures int       `json:"failures,omitempty"` // in a row
	Since    time.Time `json:"since,omitzero"`     // it has had this state
	Output   string    `json:"output,omitempty"`   // the last line of the last check, if that failed
}

// Says returns whether the checks succeed; known is false before the first verdict.
func (h *Health) Says() (well, known bool) {
	return h != nil && h.State == Healthy, h != nil && h.State != Starting
}

// Next returns the health after one more check. began is when the node was started.
func (h Health) Next(of *vnode.Health, failed bool, output string, began, now time.Time) Health {
	_, _, startPeriod := of.Times()
	next := h
	switch {
	case !failed:
		next.State, next.Failures, next.Output = Healthy, 0, ""
	case h.State == Starting && now.Sub(began) < startPeriod:
		next.Output = output
	default:
		next.Failures, next.Output = h.Failures+1, output
		if next.Failures >= of.Most() {
			next.State = Unhealthy
		}
	}
	if next.State != h.State {
		next.Since = now
	}
	return next
}

// Result is how a check ended.
type Result struct {
	Failed bool
	Output string // its last line
}

// longestOutput is the most bytes of a check's output that are kept.
const longestOutput = 200

// LastLine returns the last line of a check's output that is not empty, cut to what is kept.
func LastLine(output []byte) string {
	lines := strings.Split(strings.TrimSpace(strings.ToValidUTF8(string(output), "?")), "\n")
	line := strings.Map(func(c rune) rune {
		if c < ' ' || c == 0x7f {
			return ' '
		}
		return c
	}, lines[len(lines)-1])
	return strings.ToValidUTF8(line[:min(len(line), longestOutput)], "")
}
