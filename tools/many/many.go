// Package many holds what the measurements of many nodes at once have in common.
package many

import (
	"os"
	"strconv"
	"strings"
	"sync"
)

// Each calls f with 0 … n-1, so many calls at a time, and returns the first error.
func Each(n, atOnce int, f func(i int) error) error {
	next := make(chan int)
	stop := make(chan struct{})
	var once sync.Once
	var first error
	var wg sync.WaitGroup
	for range atOnce {
		wg.Go(func() {
			for i := range next {
				if err := f(i); err != nil {
					once.Do(func() { first = err; close(stop) })
					return
				}
			}
		})
	}
loop:
	for i := range n {
		select {
		case next <- i:
		case <-stop:
			break loop
		}
	}
	close(next)
	wg.Wait()
	return first
}

// Available returns MemAvailable in KiB.
func Available() int64 {
	text, _ := os.ReadFile("/proc/meminfo")
	for line := range strings.Lines(string(text)) {
		if rest, ok := strings.CutPrefix(line, "MemAvailable:"); ok {
			n, _ := strconv.ParseInt(strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(rest), "kB")), 10, 64)
			return n
		}
	}
	return 0
}
