package shares

import "time"

// Witness waits for 10 ms, again and again, until it is asked how many percent of its waits ended 8 ms late or more.
func Witness() (late func() float64) {
	stop, said := make(chan struct{}), make(chan float64)
	go func() {
		waits, late := 0.0, 0.0
		for {
			select {
			case <-stop:
				said <- 100 * late / max(waits, 1)
				return
			default:
			}
			began := time.Now()
			time.Sleep(10 * time.Millisecond)
			waits++
			if time.Since(began) > 18*time.Millisecond {
				late++
			}
		}
	}()
	return func() float64 { close(stop); return <-said }
}
