package history

import (
	"time"

	"berth/internal/node/events"
	"berth/internal/sys/step"
)

// Tell writes the events of a node that are not told yet. The caller holds the node's lock and has changed the journals;
// live is nil if the node does not run. Events that cannot be written, as on a full disk, are left to the next command.
// again says that a killed command may have written some of them.
func Tell(to events.File, claims, live *step.Journal, again bool) {
	if claims.Phase != step.Up {
		return
	}
	var told toldEvents
	noted, err := claims.Noted(toldNote, &told)
	if err != nil {
		return
	}
	l := lifeOf(claims, live)
	if !noted && l.Created.IsZero() {
		_ = claims.Note(toldNote, caughtUp(l))
		return
	}
	untold, told := owed(claims.Node, told, l, time.Now())
	if len(untold) > 0 && to.Append(untold, again) == nil {
		_ = claims.Note(toldNote, told)
	}
}

// TellRemoved tells that a node is gone, unless it was never told that it is there. The caller has undone the node's steps, and
// its journal of claims still exists.
func TellRemoved(to events.File, claims *step.Journal, again bool) {
	var told toldEvents
	if _, err := claims.Noted(toldNote, &told); err != nil || !told.Created {
		return
	}
	if told.Removed.IsZero() { // noted first, so that the next command after a kill tells it with the same time
		told.Removed = time.Now()
		if claims.Note(toldNote, told) != nil {
			return
		}
	}
	_ = to.Append([]events.Event{{Time: told.Removed, Node: claims.Node, Event: events.Removed}}, again)
}

// lifeOf reads a node's life in its journals. Notes that are damaged count as not known.
func lifeOf(claims, live *step.Journal) (l life) {
	_, _ = claims.Noted(madeNote, &l.Created)
	if live != nil && live.Phase == step.Up {
		l.Runs = true
		l.Started, _ = Started(live)
		var p pause
		_, _ = live.Noted(pauseNote, &p)
		l.Paused, l.PausedAt = p.Paused, p.At
	}
	if f, err := Of(claims); err == nil && f.Last != nil && !f.Last.Ended.IsZero() {
		l.End = &lastRun{Started: f.Last.Started, Event: f.Last.event()}
		l.Refused = f.Last.Refused
	}
	return l
}

// event is the end as it is told.
func (e *End) event() events.Event {
	ev := events.Event{Time: e.Ended, State: e.State}
	if x := e.Exit; x != nil {
		ev.Signal, ev.OOM = x.Signal, x.OOM
		if !x.Unknown {
			ev.Code = &x.Code
		}
	}
	return ev
}
