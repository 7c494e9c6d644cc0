package cli

import (
	"bytes"
	"testing"
	"testing/synctest"
	"time"
)

// TestProgressIsTold: where nobody watches, a line a minute, with the time that is left by the speed since the first.
func TestProgressIsTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		a := &app{Streams: Streams{Err: &out}}
		progress, done := a.byteProgress("pull")
		const mib = 1 << 20
		progress(40*mib, 100*mib) // there since an earlier pull
		for n := int64(41); n <= 100; n++ {
			time.Sleep(3 * time.Second)
			progress(n*mib, 100*mib)
		}
		done()
		const want = "berth: pull 60.0 MiB of 100.0 MiB, 2m0s left\nberth: pull 80.0 MiB of 100.0 MiB, 1m0s left\nberth: pull 100.0 MiB of 100.0 MiB\n"
		if out.String() != want {
			t.Errorf("got\n%swant\n%s", &out, want)
		}
	})
}
