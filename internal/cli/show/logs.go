package show

import (
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"os"
	"sync"
	"time"

	"berth/internal/node"
	"berth/internal/node/nodelog"
	"berth/internal/sys/refuse"
)

// Logs says which lines of logs are wanted, and how.
type Logs struct {
	Lines        int // the last ones of each node; negative: all
	Follow       bool
	Since, Until time.Time // zero: no bound
	Timestamps   bool
}

// Write writes the logs of nodes. Those of several are merged by the times of their lines, and each line begins with its node.
func (w Logs) Write(ctx context.Context, b *node.Berth, out io.Writer, names []string) error {
	var errs []error
	var all []*tail
	defer func() {
		for _, t := range all {
			t.view.Close()
		}
	}()
	for _, name := range names {
		v, err := b.OpenLog(ctx, name)
		if err != nil {
			errs = append(errs, err)
		}
		if v != nil {
			all = append(all, &tail{name: name, view: v})
		}
	}
	if w.Follow && !w.Until.IsZero() {
		var cancel context.CancelFunc
		ctx, cancel = context.WithDeadline(ctx, w.Until)
		defer cancel()
	}
	if len(names) == 1 && !w.Timestamps && w.Since.IsZero() && w.Until.IsZero() {
		for _, t := range all {
			errs = append(errs, w.plain(ctx, b, out, t))
		}
		return refuse.Join(deleteNil(errs))
	}
	return refuse.Join(deleteNil(append(errs, w.lines(ctx, b, out, all, len(names) > 1)...)))
}

func deleteNil(errs []error) []error {
	var all []error
	for _, err := range errs {
		if err != nil {
			all = append(all, err)
		}
	}
	return all
}

// tail is one node's log while it is read.
type tail struct {
	name string
	view *nodelog.View
}

// plain writes the bytes of a log as they are.
func (w Logs) plain(ctx context.Context, b *node.Berth, out io.Writer, t *tail) error {
	to := nodelog.Bytes(out)
	if err := t.view.Last(to, w.Lines); err != nil || !w.Follow {
		return err
	}
	while, cancel := b.WhileWriting(ctx, t.name)
	defer cancel()
	return t.view.Follow(while, to)
}

func (w Logs) lines(ctx context.Context, b *node.Berth, out io.Writer, all []*tail, named bool) (errs []error) {
	width := 0
	for _, t := range all {
		width = max(width, len(t.name))
	}
	var mu sync.Mutex
	write := func(t *tail, l nodelog.Line) error {
		if !w.Since.IsZero() && l.Time.Before(w.Since) || !w.Until.IsZero() && l.Time.After(w.Until) {
			return nil
		}
		head := ""
		if named {
			head = fmt.Sprintf("%-*s  ", width, t.name)
		}
		if w.Timestamps {
			head += stamp(l.Time) + " "
		}
		text := append([]byte(head), l.Text...)
		if text[len(text)-1] != '\n' {
			text = append(text, '\n') // another line may follow
		}
		mu.Lock()
		defer mu.Unlock()
		_, err := out.Write(text)
		return err
	}
	past := make([]iter.Seq[nodelog.Line], len(all))
	failed := make([]error, len(all))
	for i, t := range all {
		past[i] = func(yield func(nodelog.Line) bool) { failed[i] = w.past(t, yield) }
	}
	for i, l := range nodelog.Merge(past) {
		if err := write(all[i], l); err != nil {
			return append(errs, err)
		}
	}
	if errs = append(errs, failed...); !w.Follow {
		return errs
	}
	var wg sync.WaitGroup
	for i, t := range all {
		wg.Go(func() {
			while, cancel := b.WhileWriting(ctx, t.name)
			defer cancel()
			l := nodelog.NewLines(t.view, func(l nodelog.Line) error { return write(t, l) })
			defer l.Close()
			failed[i] = errors.Join(t.view.Follow(while, l.Sink), l.Flush())
		})
	}
	wg.Wait()
	return append(errs, failed...)
}

var errStop = errors.New("no more lines are wanted")

// past yields the lines that a log has already.
func (w Logs) past(t *tail, yield func(nodelog.Line) bool) error {
	l := nodelog.NewLines(t.view, func(l nodelog.Line) error {
		if !yield(l) {
			return errStop
		}
		return nil
	})
	defer l.Close()
	err := t.view.Last(l.Sink, w.Lines)
	if err == nil {
		err = l.Flush()
	}
	if errors.Is(err, errStop) || errors.Is(err, os.ErrClosed) {
		return nil
	}
	return err
}

// stamp is a time as a line of a log begins with it, always of the same width.
func stamp(t time.Time) string {
	if t.IsZero() {
		return fmt.Sprintf("%-29s", "unknown")
	}
	return t.Local().Format("2006-01-02T15:04:05.000-07:00")
}
