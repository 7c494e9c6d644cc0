package pull

import (
	"bytes"
	"regexp"
	"strings"
	"testing"
	"time"

	"berth/test/testkit"
)

// TestPullProgress: a person at a terminal sees how far a pull is, and nothing is left of that at its end.
func TestPullProgress(t *testing.T) {
	r := newRig(t)
	r.push("app:1", noise(t, 1, 3<<20))
	tty, master := testkit.Terminal(t)

	r.wire.restart(0, 1<<20)
	cmd := r.Command("image", "pull", r.ref("app:1"), "--name", "app")
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, tty
	testkit.Must(r, cmd.Start())
	tty.Close()
	<-r.wire.full
	time.Sleep(200 * time.Millisecond) // longer than between two lines of progress: what comes next is told
	r.wire.goOn()
	var seen strings.Builder
	for buf := make([]byte, 4096); ; {
		n, err := master.Read(buf)
		seen.Write(buf[:n])
		if err != nil { // the terminal has no user any more
			break
		}
	}
	if err := cmd.Wait(); err != nil || !strings.Contains(out.String(), "1 layer") {
		t.Fatalf("pull: %v: %s", err, &out)
	}
	if !regexp.MustCompile(`\x1b\[Kpull [0-9.]+ [KM]iB of 3\.[0-9] MiB, [0-9]+s left`).MatchString(seen.String()) {
		t.Errorf("the terminal shows %q", &seen)
	}
	if !strings.HasSuffix(seen.String(), "\r\x1b[K") {
		t.Errorf("the terminal keeps something of %q", &seen)
	}
}
