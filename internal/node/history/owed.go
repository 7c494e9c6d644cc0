package history

import (
	"time"

	"berth/internal/node/events"
)

// toldEvents says which events of a node were told, as note toldNote of its journal has it.
type toldEvents struct {
	Created bool      `json:"created,omitempty"`
	Started time.Time `json:"started,omitzero"` // the last start
	Ended   time.Time `json:"ended,omitzero"`   // the last end
	Runs    bool      `json:"runs,omitempty"`   // the last start has no end yet
	Paused  bool      `json:"paused,omitempty"`
	Refused time.Time `json:"refused,omitzero"` // since when its restarts fail for one reason
	Removed time.Time `json:"removed,omitzero"` // when its removal was about to be told
}

// life is the part of a node's journals from which its events follow.
type life struct {
	Created  time.Time // zero: an older berth made it, and did not note when
	Runs     bool
	Started  time.Time // of the present run
	Paused   bool
	PausedAt time.Time // when it was paused or unpaused
	End      *lastRun  // of the previous run; nil: there was none
	Refused  Refusal   // why its restarts fail since then
}

// lastRun is how the run of a node before the present one ended.
type lastRun struct {
	Started time.Time    // when the run was started; zero: not known
	Event   events.Event // its State, Code, Signal, OOM and Time
}

// owed returns the events of a node's life that are not told yet, and what is told with them.
func owed(node string, told toldEvents, l life, now time.Time) ([]events.Event, toldEvents) {
	var all []events.Event
	add := func(kind string, at time.Time) { all = append(all, events.Event{Time: at, Node: node, Event: kind}) }
	started := func(at time.Time) {
		if !at.IsZero() && !at.Equal(told.Started) {
			add(events.Started, at)
			told.Started, told.Runs, told.Paused = at, true, false
		}
	}
	ended := func(e events.Event) {
		if e.OOM {
			add(events.OOM, e.Time)
		}
		e.Node, e.Event = node, events.Ended
		all = append(all, e)
		told.Ended, told.Runs, told.Paused = e.Time, false, false
	}
	if !told.Created {
		add(events.Created, l.Created)
		told.Created = true
	}
	if l.End != nil && !l.End.Event.Time.Equal(told.Ended) {
		started(l.End.Started)
		ended(l.End.Event)
	}
	if !l.Runs {
		if told.Runs { // the host went down, and no process saw the end
			ended(events.Event{Time: now, State: "stopped"})
		}
		if r := l.Refused; r.Times > 0 && !r.Since.Equal(told.Refused) { // each reason once
			all = append(all, events.Event{Time: r.Since, Node: node, Event: events.Refused, Text: r.Why})
			told.Refused = r.Since
		}
		return all, told
	}
	if told.Runs && !l.Started.Equal(told.Started) {
		ended(events.Event{Time: now, State: "stopped"})
	}
	started(l.Started)
	if l.Paused != told.Paused {
		kind := events.Unpaused
		if l.Paused {
			kind = events.Paused
		}
		add(kind, l.PausedAt)
		told.Paused = l.Paused
	}
	return all, told
}

// caughtUp returns what counts as told of a node that an older berth made: its life so far.
func caughtUp(l life) toldEvents {
	t := toldEvents{Created: true, Started: l.Started, Runs: l.Runs, Paused: l.Paused}
	t.Refused = l.Refused.Since
	if l.End != nil {
		t.Ended = l.End.Event.Time
	}
	return t
}
