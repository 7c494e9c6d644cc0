package proc

import (
	"testing"

	"golang.org/x/sys/unix"
)

func TestParseSignal(t *testing.T) {
	for text, want := range map[string]unix.Signal{
		"TERM": unix.SIGTERM, "SIGHUP": unix.SIGHUP, "sigusr1": unix.SIGUSR1, "9": unix.SIGKILL, "RTMIN": 34, "SIGRTMIN+3": 37, "rtmax-1": 63, "64": 64,
		"": 0, "0": 0, "65": 0, "-9": 0, "TERMINATE": 0, "RTMIN+31": 0, "RTMAX+1": 0, "RTMIN-1": 0, "SIG": 0, "RTMINx": 0,
	} {
		got, err := ParseSignal(text)
		if got != want || (err == nil) != (want != 0) {
			t.Errorf("%q: %d, %v; want %d", text, got, err, want)
		}
		if want == 0 {
			continue
		}
		if again, err := ParseSignal(SignalText(got)); again != got || err != nil {
			t.Errorf("%q is named %q: %d, %v", text, SignalText(got), again, err)
		}
	}
}
