package machine

// rdtsc reads the time stamp counter of this CPU.
func rdtsc() uint64
