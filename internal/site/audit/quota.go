package audit

import (
	"sync"
	"time"

	"berth/internal/spec/roles"
)

// A caller's share of the file of reads and refusals: bytes in a period. Lines above it are counted, and reported at the end of the
// period.
const (
	share  = 64 << 10
	period = time.Minute
)

// An operator's share of the file of acts. All acts of the operator are in it: when the share is used up, further acts are refused
// (Spent). So the files that are kept have room for all acts of one operator in the time for which they are kept.
const (
	actShare  = 512 << 10
	actPeriod = time.Hour
)

// caller identifies the owner of a share.
type caller struct {
	who, via string
	role     roles.Role
}

// had counts the bytes and lines of a caller in this period.
type had struct {
	bytes   int
	dropped int
	last    Line // that was dropped
}

// shares are those of all callers in this period.
type shares struct {
	most   int // bytes of a caller
	period time.Duration

	mu    sync.Mutex
	of    map[caller]*had
	timer *time.Timer // ends the period; nil: no caller has asked in it
}

func newShares(most int, period time.Duration) shares {
	return shares{most: most, period: period, of: map[caller]*had{}}
}

// Spent reports whether an operator has used up the share of the file of acts in this hour. Other callers have no such share.
func (l *Log) Spent(w roles.Who) (spent bool) {
	s := &l.actShares
	s.mu.Lock()
	defer s.mu.Unlock()
	h := s.of[caller{w.Name, w.Via, w.Role}]
	return h != nil && h.dropped > 0
}

// take reports whether a line of so many bytes is within its caller's share. tell is called at the end of the period, with a line for each
// caller of whom lines were dropped.
func (s *shares) take(line Line, bytes int, tell func([]Line)) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.timer == nil {
		s.timer = time.AfterFunc(s.period, func() { s.end(tell) })
	}
	c := caller{line.Who, line.Via, line.Role}
	h := s.of[c]
	if h == nil {
		h = &had{}
		s.of[c] = h
	}
	if h.bytes+bytes > s.most {
		h.dropped, h.last = h.dropped+1, line
		return false
	}
	h.bytes += bytes
	return true
}

// end ends the period.
func (s *shares) end(tell func([]Line)) {
	var all []Line
	s.mu.Lock()
	for c, h := range s.of {
		if h.dropped > 0 {
			all = append(all, Line{Who: c.who, Role: c.role, Via: c.via, From: h.last.From, Act: h.last.Act, Result: Dropped, Dropped: h.dropped})
		}
	}
	clear(s.of)
	if s.timer != nil {
		s.timer.Stop()
		s.timer = nil
	}
	s.mu.Unlock()
	tell(all)
}
