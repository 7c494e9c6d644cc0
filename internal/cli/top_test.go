package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"berth/internal/node/top"
	"berth/test/testkit"
)

// terminal opens both ends of a pseudo-terminal.
func terminal(t *testing.T) (end, tty *os.File) {
	t.Helper()
	tty, end = testkit.Terminal(t)
	testkit.Resize(t, tty, 24, 80)
	return end, tty
}

// TestTopGivesTheTerminalBack checks that q and an interrupt restore the terminal.
func TestTopGivesTheTerminalBack(t *testing.T) {
	for _, how := range []string{"q", "interrupt"} {
		t.Run(how, func(t *testing.T) {
			end, tty := terminal(t)
			before, err := unix.IoctlGetTermios(int(tty.Fd()), unix.TCGETS)
			if err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			code := make(chan int)
			go func() {
				code <- Main(ctx, []string{"top", "--root", t.TempDir()}, Streams{In: tty, Out: tty, Err: tty})
			}()
			seen := readUntil(t, end, "q quit")
			if !strings.Contains(seen, "\x1b[?1049h\x1b[?25l") || !strings.Contains(seen, "no node runs") {
				t.Errorf("drawn: %q", seen)
			}
			if during, _ := unix.IoctlGetTermios(int(tty.Fd()), unix.TCGETS); during.Lflag&unix.ECHO != 0 {
				t.Error("keys are shown in the table")
			}
			if how == "q" {
				if _, err := end.WriteString("dmj\x1b[Bq"); err != nil {
					t.Fatal(err)
				}
			} else {
				cancel()
			}
			readUntil(t, end, "\x1b[?25h\x1b[?1049l")
			if c := <-code; c != 0 {
				t.Errorf("exit code %d", c)
			}
			after, err := unix.IoctlGetTermios(int(tty.Fd()), unix.TCGETS)
			if diff := cmp.Diff(before, after); diff != "" || err != nil {
				t.Errorf("the terminal is not as it was: %v %s", err, diff)
			}
		})
	}
}

func readUntil(t *testing.T, from *os.File, what string) string {
	t.Helper()
	var all bytes.Buffer
	buf := make([]byte, 4096)
	for !strings.Contains(all.String(), what) {
		n, err := from.Read(buf)
		if err != nil {
			t.Fatalf("%v after %q", err, all.String())
		}
		all.Write(buf[:n])
	}
	return all.String()
}

// TestTopStreams checks that top prints as many tables or objects as asked for.
func TestTopStreams(t *testing.T) {
	var out, stderr bytes.Buffer
	run := func(args ...string) int {
		out.Reset()
		return Main(t.Context(), append([]string{"top", "--root", t.TempDir(), "-i", "100ms"}, args...), Streams{In: os.Stdin, Out: &out, Err: &stderr})
	}
	if code := run("-n", "2"); code != 0 || strings.Count(out.String(), "no node runs\n") != 2 || strings.Contains(out.String(), "\x1b") {
		t.Errorf("exit %d, %q", code, out.String())
	}
	if code := run("-n", "2", "--json"); code != 0 {
		t.Errorf("exit %d, %q", code, stderr.String())
	}
	for d := json.NewDecoder(&out); d.More(); {
		var s top.Sample
		if err := d.Decode(&s); err != nil || s.Interval <= 0 || s.Host.CPU == nil {
			t.Errorf("%v, %+v", err, s)
		}
	}
	for args, want := range map[string]string{"--sort size": "one of cpu, memory", "-i 1ms": "at least 100ms", "-n -1": "above 0"} {
		stderr.Reset()
		if code := run(strings.Fields(args)...); code != 2 || !strings.Contains(stderr.String(), want) {
			t.Errorf("%s: exit %d, %q", args, code, stderr.String())
		}
	}
	if code := run("nobody"); code != 4 {
		t.Errorf("a node that is not there: exit %d", code)
	}
}
