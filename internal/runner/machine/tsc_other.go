//go:build !amd64

package machine

// rdtsc is for hosts that run the emulator of their own architecture: there it is 0.
func rdtsc() uint64 { return 0 }
