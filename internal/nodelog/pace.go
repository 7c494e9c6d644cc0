package nodelog

import (
	"sync"
	"time"
)

// What moving may take, so that a node that writes as fast as it can takes neither the host's CPU nor its disk by the
// keeper: its writers wait instead.
const (
	NodeRate = 4 << 20  // bytes a second, of one node
	HostRate = 32 << 20 // of all nodes
	burst    = time.Second / 4
	turnCost = 4 << 10 // what a turn counts as at least: it costs about 10 us of CPU, however little it moves
)

// pace spreads costs over time.
type pace struct {
	rate int64 // bytes a second
	mu   sync.Mutex
	free time.Time // when all that was taken is paid for
}

// take counts n bytes and returns how long to wait until the next.
func (p *pace) take(n int, now time.Time) time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.free.Before(now) {
		p.free = now
	}
	p.free = p.free.Add(time.Duration(int64(n) * int64(time.Second) / p.rate))
	return max(p.free.Sub(now)-burst, 0)
}
