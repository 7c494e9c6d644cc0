// Package history reads and writes the notes in a node's journals: the node's owner, how it last ended, whether it is to be
// started again, whether it is paused, and which events were told.
//
// status.json is a copy of the notes, for reading. A command acts on the notes.
package history

import (
	"errors"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"berth/internal/node/events"
	"berth/internal/spec/vnode"
	"berth/internal/sys/proc"
	"berth/internal/sys/step"
)

const (
	ownerNote     = "owner"     // in the journal of claims: the process of the berth run that the node belongs to (proc.ID)
	endNote       = "end"       // in the journal of claims: how the node ended last (End)
	wholeNote     = "whole"     // in the journal of claims: all of them are made and on the disk, and so is the spec (bool)
	madeNote      = "made"      // in the journal of claims: when the node was made (time.Time)
	toldNote      = "told"      // in the journal of claims: which events of it were told (toldEvents)
	restartNote   = "restart"   // in the journal of claims: a restart is under way (bool)
	startNote     = "start"     // in the live journal: when the node was started (time.Time)
	unhealthyNote = "unhealthy" // in the live journal: its health check asked for its end (bool)
	askedNote     = "asked"     // in the live journal: until when it may end because it was asked to (time.Time)
	pauseNote     = "pause"     // in the live journal: whether the node is paused (pause); noted before the freezer is asked
)

// The states of a node that does not run.
const (
	Stopped = "stopped" // berth stop, or a reboot
	Exited  = "exited"  // its process 1 ended by itself
)

// Exit is how a node's process 1 ended.
type Exit struct {
	Code      int    `json:"code"`                // 128 + signal where a signal ended it
	Signal    string `json:"signal,omitempty"`    // SIGKILL …
	OOM       bool   `json:"oom,omitempty"`       // the kernel killed for lack of memory inside the node
	Unhealthy bool   `json:"unhealthy,omitempty"` // its health check ended it, which counts as a failure
	Unknown   bool   `json:"unknown,omitempty"`   // no process saw the end, and this kernel does not tell afterwards
	// If no process saw the end: the last moment at which the node is known to have run. Status.Ended is when it was found.
	After time.Time `json:"after,omitzero"`
}

func (e *Exit) String() string {
	switch {
	case e == nil:
		return ""
	case e.Unknown:
		return "unknown"
	case e.Unhealthy:
		return strconv.Itoa(e.Code) + " (unhealthy)"
	case e.OOM:
		return strconv.Itoa(e.Code) + " (out of memory)"
	case events.Asked(e.Signal) != "":
		return "(" + events.Asked(e.Signal) + ")"
	case e.Signal != "":
		return strconv.Itoa(e.Code) + " (" + e.Signal + ")"
	}
	return strconv.Itoa(e.Code)
}

// Failed reports whether restart policy on-failure applies. A node that has shut down by itself has not failed.
func (e *Exit) Failed() bool {
	return e.Unknown || e.Unhealthy || e.Code != 0 && e.Signal != events.PowerOff
}

// ExitOf returns the exit of a process by its wait status, if that is known.
func ExitOf(ws unix.WaitStatus, known, oom bool) *Exit {
	switch {
	case !known:
		return &Exit{Unknown: true, OOM: oom, Code: 255}
	case ws.Signaled():
		return &Exit{Code: 128 + int(ws.Signal()), Signal: unix.SignalName(ws.Signal()), OOM: oom}
	}
	return &Exit{Code: ws.ExitStatus(), OOM: oom}
}

// End is how a node ended last, and how often its restart policy has started it.
type End struct {
	State    string    `json:"state"`   // Stopped | Exited
	Process  proc.ID   `json:"process"` // its process 1; the zero value after a reboot
	Boot     string    `json:"boot,omitempty"`
	Started  time.Time `json:"started,omitzero"`
	Ended    time.Time `json:"ended,omitzero"`
	Exit     *Exit     `json:"exit,omitempty"`
	Restarts int       `json:"restarts,omitempty"` // with the one that is due
	Refused  Refusal   `json:"refused,omitzero"`
}

// Refusal says that restarts failed since a node's end, and why.
type Refusal struct {
	Why   string    `json:"why"`
	Since time.Time `json:"since"` // the first one for this reason
	Times int       `json:"times"` // in a row, for whatever reason
}

// Fate is the part of a node's journal of claims that says who owns the node and how it last ended.
type Fate struct {
	Claims *step.Journal
	Owner  *proc.ID // the process with which the node ends; nil: none, the node stays
	Last   *End     // nil: it has not ended yet
}

// Of reads the fate of a node in its journal of claims.
func Of(claims *step.Journal) (Fate, error) {
	f := Fate{Claims: claims}
	var owner proc.ID
	owned, err := claims.Noted(ownerNote, &owner)
	if owned {
		f.Owner = &owner
	}
	var last End
	ended, lastErr := claims.Noted(endNote, &last)
	if ended {
		f.Last = &last
	}
	return f, errors.Join(err, lastErr)
}

// Owned reports whether the node of a journal of claims ends with a process.
func Owned(claims *step.Journal) bool {
	owned, _ := claims.Noted(ownerNote, new(proc.ID))
	return owned
}

// Begin notes in a new journal of claims that the node is made now, and its owner, if that is not nil. A node that ends with its
// owner ends with the boot, so that nothing of it need be on the disk.
func Begin(claims *step.Journal, owner *proc.ID) error {
	claims.Lasts = owner == nil
	if err := claims.Note(madeNote, time.Now()); err != nil || owner == nil {
		return err
	}
	return claims.Note(ownerNote, owner)
}

// Made returns when a node was made, by its journal of claims; the zero time if that does not say so.
func Made(claims *step.Journal) (at time.Time) {
	_, _ = claims.Noted(madeNote, &at)
	return at
}

// SetWhole notes that all claims of a node are made, and returns when the disk has that.
func SetWhole(claims *step.Journal) error {
	if !claims.Lasts {
		return nil
	}
	if err := claims.Note(wholeNote, true); err != nil {
		return err
	}
	return claims.Sync()
}

// Whole reports whether all was made of a node that is still being created. Programs of it may have written then.
func Whole(claims *step.Journal) (yes bool) {
	_, err := claims.Noted(wholeNote, &yes)
	return err == nil && yes
}

// Orphaned reports whether the node belongs to a berth run that has ended.
func (f Fate) Orphaned() bool { return f.Owner != nil && !f.Owner.Alive() }

// Restarts counts those by the restart policy; a node that was stopped begins anew.
func (f Fate) Restarts() int {
	if f.Last == nil || f.Last.State == Stopped {
		return 0
	}
	return f.Last.Restarts
}

// Note records how the node ended, before anything is cleaned up.
func (f *Fate) Note(last End) error {
	if err := f.Claims.Note(endNote, last); err != nil {
		return err
	}
	f.Last = &last
	return nil
}

// RanWell is the time after which a node that ends is not taken to be in a loop of restarts.
const RanWell = 10 * time.Second

// Due returns the time until the restart policy starts an ended node again, 0 if it does not: 0.1 s, doubled with each restart, or each
// restart that fails, up to a minute.
func (f Fate) Due(policy vnode.Restart, boot string) time.Duration {
	switch {
	case f.Owner != nil || f.Last == nil || f.Last.State != Exited || f.Last.Boot != boot:
		return 0
	case policy == vnode.Always:
	case f.Last.Exit != nil && f.Last.Exit.Signal == events.BootAgain: // it was asked to from inside, whatever the policy
	case policy == vnode.OnFailure && f.Last.Exit != nil && f.Last.Exit.Failed():
	default:
		return 0
	}
	return min(100*time.Millisecond<<min(max(f.Last.Restarts-1, f.Last.Refused.Times, 0), 12), time.Minute)
}

// Counted is the last end with one more restart that is due.
func (e End) Counted() End {
	if e.Ended.Sub(e.Started) > RanWell { // begin anew
		e.Restarts = 0
	}
	e.Restarts++
	return e
}

// NotStarted is the last end after a restart that failed at a time.
func (e End) NotStarted(why string, at time.Time) End {
	if e.Refused.Why != why {
		e.Refused.Why, e.Refused.Since = why, at
	}
	e.Refused.Times++
	return e
}
