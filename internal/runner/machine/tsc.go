package machine

import "time"

// measureFor is how long the time stamp counter is measured.
const measureFor = 20 * time.Millisecond

// tscKHz measures how fast this host's time stamp counter runs, in kHz; 0: it has none. The emulator passes the counter on to its
// guest (cpu_get_host_ticks in QEMU's include/qemu/timer.h), and microvm has no other clock by which a guest could measure it.
func tscKHz() uint64 {
	t0, c0 := readBoth()
	time.Sleep(measureFor)
	t1, c1 := readBoth()
	return uint64(float64(c1-c0) / float64(t1.Sub(t0)) * 1e6)
}

// readBoth reads the time and the counter as nearly at once as it can: the best of some tries.
func readBoth() (at time.Time, counter uint64) {
	best := uint64(1<<64 - 1)
	for range 16 {
		before := rdtsc()
		now := time.Now()
		after := rdtsc()
		if after-before < best {
			best, at, counter = after-before, now, before+(after-before)/2
		}
	}
	return at, counter
}
