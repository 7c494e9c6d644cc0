package result

import "time"

// Head says what a trial was, whatever it measured.
type Head struct {
	Seq      int       `json:"seq"`   // place in the run, from 1
	Row      string    `json:"row"`   // its name
	Round    int       `json:"round"` // 0 is the warm-up round, which does not count
	Arm      string    `json:"arm"`
	After    string    `json:"after,omitempty"`     // the arm that ran before it; absent: nothing did, or not for a while
	AfterRow string    `json:"after_row,omitempty"` // the row of that trial, if it is another one
	Start    time.Time `json:"start"`
	WallMS   int64     `json:"wall_ms"`         // with the start and the end of the command
	Error    string    `json:"error,omitempty"` // then nothing was measured
}

// Follows notes what ran before it.
func (h *Head) Follows(before *Head) {
	h.After, h.AfterRow = before.Arm, ""
	if before.Row != h.Row {
		h.AfterRow = before.Row
	}
}
