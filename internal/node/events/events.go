// Package events keeps a record of what happened to nodes: a file of bounded size, to which each command appends lines and
// which other processes follow.
//
// No command has to remember an event. Package history derives each event from a node's journals, and notes there which were told. If a
// command is killed between an act and its event, the next command that takes the node's lock tells the event.
package events

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"berth/internal/node/nodelog"
	"berth/internal/sys/fault"
	"berth/internal/sys/lock"
)

// The kinds of events.
const (
	Created  = "created"
	Started  = "started"
	Ended    = "ended"
	Paused   = "paused"
	Unpaused = "unpaused"
	Removed  = "removed"

	// OOM is told before Ended: the kernel killed in the node for lack of memory while it ran.
	OOM = "oom"

	Healthy   = "healthy"   // its health check succeeded
	Unhealthy = "unhealthy" // its health check failed, as often as its spec says
	Lost      = "lost"      // a file server did not get what the node wrote last
	Unserved  = "unserved"  // the daemon of a mount ended, and another one could not be started
	Served    = "served"    // another daemon serves a mount, since the one before ended
	Refused   = "refused"   // its restart policy, or autostart, did not start it
)

// Event is one thing that happened to a node.
type Event struct {
	Time  time.Time `json:"time"`
	Node  string    `json:"node"`
	Event string    `json:"event"` // Created …

	// For Ended:
	State  string `json:"state,omitempty"`  // "stopped", by a command or a reboot, or "exited", by itself
	Code   *int   `json:"code,omitempty"`   // 128 + signal where a signal ended it; nil if it is not known
	Signal string `json:"signal,omitempty"` // SIGKILL …
	OOM    bool   `json:"oom,omitempty"`    // the kernel killed for lack of memory inside the node

	Text string `json:"text,omitempty"` // for Lost, Unserved, Served and Refused: what it was about, and where or why
}

func (e Event) String() string {
	text := fmt.Sprintf("%s %s %s", e.Time.Local().Format("2006-01-02 15:04:05.000"), e.Node, e.Event)
	if e.Event == Ended {
		text += " "
		switch {
		case e.Code == nil:
			text += "unknown"
		case Asked(e.Signal) != "":
			text += "(" + Asked(e.Signal) + ")"
		case e.Signal != "":
			text += fmt.Sprintf("%d (%s)", *e.Code, e.Signal)
		default:
			text += fmt.Sprint(*e.Code)
		}
		if e.State == "stopped" {
			text += ", stopped"
		}
		if e.OOM {
			text += ", out of memory"
		}
	}
	if e.Text != "" {
		text += ": " + e.Text
	}
	return text
}

// same reports whether two records tell of one event.
func (e Event) same(o Event) bool {
	return e.Node == o.Node && e.Event == o.Event && e.Time.Equal(o.Time)
}

// Half is the most that the newest part of the file holds, in bytes. The part before it is kept beside it: some ten thousand
// events.
const Half = 1 << 20

// File is the events of one root.
type File struct {
	Dir string // a folder of its own, because it is watched
}

func (f File) log() nodelog.Log {
	return nodelog.Log{File: filepath.Join(f.Dir, "events"), Old: filepath.Join(f.Dir, "events.1")}
}

// patience is how long Append waits for another writer, which needs well below a millisecond.
const patience = 2 * time.Second

// Append adds events, whole or not at all. With again, those that the file has already are left out: a killed process may have
// added them.
func (f File) Append(all []Event, again bool) error {
	file, err := f.open()
	if err != nil {
		return fmt.Errorf("write events: %w", err)
	}
	defer lock.Release(file)
	if again {
		had, err := f.read()
		if err != nil {
			return err
		}
		all = slices.DeleteFunc(slices.Clone(all), func(e Event) bool { return slices.ContainsFunc(had, e.same) })
	}
	var text bytes.Buffer
	end, err := file.Seek(0, io.SeekEnd)
	if err != nil {
		return fmt.Errorf("write events: %w", err)
	}
	if last := make([]byte, 1); end > 0 {
		if _, err := file.ReadAt(last, end-1); err == nil && last[0] != '\n' { // torn by a power cut
			text.WriteByte('\n')
		}
	}
	enc := json.NewEncoder(&text)
	enc.SetEscapeHTML(false)
	for _, e := range all {
		if err := enc.Encode(e); err != nil {
			return fmt.Errorf("write events: %w", err)
		}
	}
	fault.Point("events begun")
	if _, err := file.Write(text.Bytes()); err != nil {
		_ = file.Truncate(end)
		return fmt.Errorf("write events: %w", err)
	}
	fault.Point("events told")
	return nil
}

// open opens and locks the newest part. A full part becomes the old one first.
func (f File) open() (*os.File, error) {
	l := f.log()
	for {
		file, err := os.OpenFile(l.File, os.O_RDWR|os.O_CREATE|os.O_APPEND|unix.O_NOFOLLOW, 0o600)
		if errors.Is(err, fs.ErrNotExist) {
			if err := os.MkdirAll(f.Dir, 0o700); err != nil {
				return nil, err
			}
			continue
		}
		if err != nil {
			return nil, err
		}
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		err = lock.Wait(ctx, file)
		cancel()
		if err != nil {
			file.Close()
			return nil, err
		}
		mine, err := file.Stat()
		if err != nil {
			lock.Release(file)
			return nil, err
		}
		there, err := os.Lstat(l.File)
		switch {
		case err != nil || !os.SameFile(mine, there): // renamed before it was locked
		case mine.Size() < Half:
			return file, nil
		default:
			if err := os.Rename(l.File, l.Old); err != nil {
				lock.Release(file)
				return nil, err
			}
			fault.Point("events turned over")
		}
		lock.Release(file)
	}
}

// read reads all events.
func (f File) read() ([]Event, error) {
	var all []Event
	err := f.Follow(canceled(), true, func(e Event) error { all = append(all, e); return nil })
	return all, err
}

func canceled() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ctx
}

// Follow calls each with every event that there is, unless past is false, and then with every one that is added until ctx ends.
func (f File) Follow(ctx context.Context, past bool, each func(Event) error) error {
	v, err := f.log().Open()
	if errors.Is(err, fs.ErrNotExist) {
		if ctx.Err() != nil {
			return nil
		}
		if err = f.make(); err == nil {
			v, err = f.log().Open()
		}
	}
	if err != nil {
		return fmt.Errorf("read events: %w", err)
	}
	defer func() { v.Close() }()
	l := nodelog.NewLines(v, func(line nodelog.Line) error {
		var e Event
		if json.Unmarshal(line.Text, &e) != nil || e.Node == "" { // torn by a power cut
			return nil //nolint:nilerr // the other lines count
		}
		return each(e)
	})
	defer l.Close()
	if !past {
		if err := v.Last(l.Sink, 0); err != nil {
			return err
		}
	}
	if ctx.Err() != nil {
		return v.More(l.Sink)
	}
	return v.Follow(ctx, l.Sink)
}

// Wish says which events are wanted.
type Wish struct {
	Nodes        []string  // none: all
	Since, Until time.Time // zero: no bound
	Past         bool      // those that there are
	Stream       bool      // those to come, until Until
}

// Tell calls each with every event that is wanted.
func (f File) Tell(ctx context.Context, w Wish, each func(Event) error) error {
	if !w.Stream {
		ctx = canceled()
	} else if !w.Until.IsZero() {
		var cancel context.CancelFunc
		ctx, cancel = context.WithDeadline(ctx, w.Until)
		defer cancel()
	}
	return f.Follow(ctx, w.Past, func(e Event) error {
		if len(w.Nodes) > 0 && !slices.Contains(w.Nodes, e.Node) || e.Time.Before(w.Since) || !w.Until.IsZero() && e.Time.After(w.Until) {
			return nil
		}
		return each(e)
	})
}

// make makes the file, so that there is something to follow.
func (f File) make() error {
	file, err := f.open()
	if err == nil {
		lock.Release(file)
	}
	return err
}
