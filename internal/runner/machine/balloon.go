package machine

import (
	"context"
	"errors"
	"fmt"
	"time"

	"berth/internal/runner/machine/wire"
)

// memory asks the guest to have so many bytes, unless that is 0, and answers how many it has once it has them, or comes no nearer. It waits
// until ctx ends, which is for as long as who asks does, and ends when somebody asks for another value.
func (m *monitor) memory(ctx context.Context, to int64) *answer {
	ask := m.has
	if to > 0 {
		ask = func(ctx context.Context) (int64, error) { return m.resize(ctx, to) }
	}
	now, err := ask(ctx)
	switch {
	case errors.Is(err, errGone):
		return &answer{Gone: true}
	case err != nil:
		return &answer{Failure: &wire.Failure{Why: err.Error()}}
	}
	return &answer{Memory: now}
}

// has returns how many bytes the guest has.
func (m *monitor) has(ctx context.Context) (int64, error) {
	var now struct{ Actual int64 }
	err := m.qmp.call(ctx, "query-balloon", nil, &now)
	return now.Actual, err
}

// resize asks the guest to have so many bytes, also if who asks does not wait for it, and waits.
func (m *monitor) resize(ctx context.Context, to int64) (has int64, err error) {
	mine, end := m.newest()
	defer end(nil)
	if err := m.qmp.call(mine, "balloon", map[string]int64{"value": to}, nil); err != nil {
		return 0, err
	}
	stop := context.AfterFunc(ctx, func() { end(context.Cause(ctx)) })
	defer stop()
	late := time.NewTimer(still)
	defer late.Stop()
	over := false
	for nearest := int64(-1); ; {
		changed := m.qmp.changes()
		if has, err = m.has(mine); err != nil {
			return 0, err
		}
		away := max(has-to, to-has)
		if away == 0 || over {
			return has, nil
		}
		if nearest < 0 || away < nearest {
			nearest = away
			late.Reset(still)
		}
		select {
		case <-changed:
		case <-late.C:
			over = true
		case <-m.qmp.ended:
			return 0, m.qmp.lost
		case <-mine.Done():
			return 0, context.Cause(mine)
		}
	}
}

// errNewer is what who asked for the guest's memory is told when another one asks for it.
var errNewer = errors.New("the guest was asked for another size meanwhile")

// newest returns a context that ends when somebody asks for the next value, and after the longest time.
func (m *monitor) newest() (context.Context, context.CancelCauseFunc) {
	ctx, stop := context.WithTimeoutCause(context.Background(), longestResize, fmt.Errorf("the guest is not done after %s", longestResize))
	ctx, end := context.WithCancelCause(ctx)
	m.resizing.Lock()
	defer m.resizing.Unlock()
	if m.resizing.end != nil {
		m.resizing.end(errNewer)
	}
	m.resizing.end = end
	return ctx, func(why error) { end(why); stop() }
}
