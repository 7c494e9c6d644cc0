package nodelog

import (
	"sync"
	"time"
)

// Limits of the keeper, so that a node that writes as fast as it can does not use up the host's CPU or disk: its
// writers wait instead.
const (
	NodeRate = 4 << 20  // bytes a second, of one node
	HostRate = 32 << 20 // of all nodes
	burst    = time.Second / 4
	turnCost = 4 << 10 // bytes that a turn counts as at least: it costs about 10 us of CPU, however little it moves
)

// pace limits a rate.
type pace struct {
	rate int64 // bytes a second
	mu   sync.Mutex
	free time.Time // when everything taken so far is paid for
}

// take counts n bytes and returns how long to wait before the next call.
func (p *pace) take(n int, now time.Time) time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.free.Before(now) {
		p.free = now
	}
	p.free = p.free.Add(time.Duration(int64(n) * int64(time.Second) / p.rate))
	return max(p.free.Sub(now)-burst, 0)
}
