package machine

import (
	"encoding/json"
	"io"
	"net"
	"os"
	"slices"
	"strings"
	"testing"

	"berth/internal/runner"
	"berth/internal/runner/machine/wire"
)

// guestLine returns a relay with a guest at the other end of its line.
func guestLine(t testing.TB) (*relay, net.Conn) {
	t.Helper()
	return guestLineOn(t, func(c net.Conn) net.Conn { return c })
}

// guestLineOn is guestLine with the relay's end as another line makes it.
func guestLineOn(t testing.TB, by func(net.Conn) net.Conn) (*relay, net.Conn) {
	t.Helper()
	ours, theirs := net.Pipe()
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	m := &monitor{launch: &Launch{}, console: null}
	m.lines[1] = by(ours)
	r := newRelay(m)
	t.Cleanup(func() { theirs.Close(); ours.Close(); <-r.broken })
	return r, theirs
}

// nullFiles opens three files for a command.
func nullFiles(t testing.TB) (all []*os.File) {
	t.Helper()
	for range 3 {
		f, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, f)
	}
	return all
}

// TestHostileGuest: a guest that breaks the rules ends its own line, and whoever waits for it is told.
func TestHostileGuest(t *testing.T) {
	frame := func(kind wire.Kind, channel uint32, payload string) []byte {
		var b strings.Builder
		if err := wire.NewWriter(&b).Send(kind, channel, []byte(payload)); err != nil {
			t.Fatal(err)
		}
		return []byte(b.String())
	}
	started := frame(wire.Started, 1, "")
	for name, says := range map[string][]byte{
		"starts twice":       slices.Concat(started, started),
		"ends before start":  frame(wire.Ended, 1, `{"code":0}`),
		"odd failure":        frame(wire.Failed, 1, `{"code":1}`),
		"no JSON":            frame(wire.Failed, 1, `{`),
		"odd kind":           frame('?', 1, ""),
		"too long":           {byte(wire.Output), 0, 0, 0, 1, 0xff, 0xff},
		"more than granted":  slices.Concat(started, slices.Repeat(frame(wire.Grant, 1, "i\x00\x00\x00\x01"), 2)),
		"grants for output":  frame(wire.Grant, 1, "o\x00\x00\x00\x01"),
		"greets twice":       slices.Repeat(frame(wire.Hello, 0, `{"version":1}`), 2),
		"of another version": frame(wire.Hello, 0, `{"version":9}`),
		"resizes the user's": frame(wire.Resize, 1, "\x00\x18\x00\x50"),
		"errors of terminal": frame(wire.Error, 1, "x"),
	} {
		r, guest := guestLine(t)
		c, err := r.open(false, name == "errors of terminal", nullFiles(t))
		if err != nil {
			t.Fatal(err)
		}
		go func() { _, _ = io.Copy(io.Discard, guest) }()
		_, _ = guest.Write(says) // fails where the relay does not read to the end
		<-r.broken
		if a := r.start(t.Context(), c); name != "more than granted" && name != "starts twice" && a.Failure == nil {
			t.Errorf("%s: %+v", name, a)
		}
		r.close(c)
	}
}

// FuzzGuest: whatever a guest says, the relay neither panics nor waits.
func FuzzGuest(f *testing.F) {
	f.Add([]byte("h\x00\x00\x00\x00\x00\x0d{\"version\":1}s\x00\x00\x00\x01\x00\x00o\x00\x00\x00\x01\x00\x01xe\x00\x00\x00\x01\x00\x02{}"))
	f.Add([]byte("a\x00\x00\x00\x01\x00\x01\x01g\x00\x00\x00\x01\x00\x05i\x00\x00\x00\x01"))
	f.Add([]byte("s\x00\x00\x00\x01\x00\x00x\x00\x00\x00\x01\x00\x01xw\x00\x00\x00\x01\x00\x04\x00\x18\x00\x50"))
	f.Fuzz(func(t *testing.T, says []byte) {
		for _, terminal := range []bool{false, true} {
			r, guest := guestLine(t)
			c, err := r.open(false, terminal, nullFiles(t))
			if err != nil {
				t.Fatal(err)
			}
			go func() { _, _ = io.Copy(io.Discard, guest) }()
			_, _ = guest.Write(says)
			guest.Close()
			<-r.broken
			r.close(c)
		}
	})
}

// TestFailures: an answer of the monitor is an error in words.
func TestFailures(t *testing.T) {
	for text, code := range map[string]int{`{"failure":{"code":127,"why":"not found"}}`: runner.ExitNotFound, `{"failure":{"why":"broken"}}`: 0, `{"gone":true}`: 0} {
		a := &answer{}
		if err := json.Unmarshal([]byte(text), a); err != nil {
			t.Fatal(err)
		}
		err := a.failure("x")
		ce, isCommand := err.(*runner.CommandError) //nolint:errorlint // it is not wrapped
		if err == nil || isCommand != (code != 0) || isCommand && ce.Code != code {
			t.Errorf("%s: %v", text, err)
		}
	}
}

// TestArguments: the emulator gets what the machine needs, and nothing that reaches the host.
func TestArguments(t *testing.T) {
	l := &Launch{Node: "m", Machine: runner.Machine{CPUs: 2, Memory: 512 << 20, Cmdline: "a=b"}}
	drives := []drive{{Disk: runner.Disk{ReadOnly: true}, serial: "disk0", files: make([]*os.File, 1), block: true, sector: 512, aio: "native"}}
	args := strings.Join(l.arguments(drives), " ")
	for _, want := range []string{
		"-S ", "-nodefaults -no-user-config", "-nic none", "-sandbox on,obsolete=deny,elevateprivileges=deny,spawn=deny,resourcecontrol=deny", "-smp 2 -m 512M", " a=b -device pvpanic",
		"driver=host_device,node-name=disk0-file,filename=/dev/fdset/2,cache.direct=on,aio=native,read-only=on",
	} {
		if !strings.Contains(args, want) {
			t.Errorf("%q is not in %s", want, args)
		}
	}
	for _, never := range []string{"-netdev", "hostfwd", "path=", "readline", "-monitor", "gdb", "/dev/kvm"} {
		if strings.Contains(args, never) {
			t.Errorf("%q is in %s", never, args)
		}
	}
}
