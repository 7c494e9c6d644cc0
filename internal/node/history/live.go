package history

import (
	"time"

	"berth/internal/sys/step"
)

// BeginRun notes in a new live journal that the node is started now.
func BeginRun(live *step.Journal) error { return live.Note(startNote, time.Now()) }

// Started returns when the node of a live journal was started; zero if that is not known.
func Started(live *step.Journal) (at time.Time, err error) {
	_, err = live.Noted(startNote, &at)
	return at, err
}

type pause struct {
	Paused bool      `json:"paused"`
	At     time.Time `json:"at,omitzero"`
}

// SetPaused notes in the live journal whether the node is paused.
func SetPaused(live *step.Journal, paused bool) error {
	return live.Note(pauseNote, pause{paused, time.Now()})
}

// Paused reports whether the node of a live journal is paused, as far as the journal says. ever is false if it never was.
func Paused(live *step.Journal) (paused, ever bool) {
	var p pause
	ever, err := live.Noted(pauseNote, &p)
	return err == nil && p.Paused, ever
}

// IsPaused is Paused for a node that may never have been paused.
func IsPaused(live *step.Journal) bool {
	paused, _ := Paused(live)
	return paused
}

// SetAsked notes that the node of a live journal is asked to end, until when it does or is killed.
func SetAsked(live *step.Journal, until time.Time) error { return live.Note(askedNote, until) }

// Asked reports whether the node of a live journal may end because it was asked to.
func Asked(live *step.Journal) bool {
	var until time.Time
	noted, err := live.Noted(askedNote, &until)
	return err == nil && noted && time.Now().Before(until)
}

// SetUnhealthy notes that the node of a live journal is ended because it is unhealthy.
func SetUnhealthy(live *step.Journal) error { return live.Note(unhealthyNote, true) }

// Unhealthy reports whether the node of a live journal was to be ended because it is unhealthy.
func Unhealthy(live *step.Journal) (yes bool) {
	_, err := live.Noted(unhealthyNote, &yes)
	return err == nil && yes
}

// PausedSince reports whether the node of a live journal is paused, or was since then.
func PausedSince(live *step.Journal, then time.Time) bool {
	var p pause
	ever, err := live.Noted(pauseNote, &p)
	return err == nil && ever && (p.Paused || p.At.After(then))
}

// SetRestarting notes whether a restart is under way.
func SetRestarting(claims *step.Journal, under bool) error { return claims.Note(restartNote, under) }

// Restarting reports whether a restart is under way, or was killed.
func Restarting(claims *step.Journal) (under bool) {
	_, err := claims.Noted(restartNote, &under)
	return err == nil && under
}
