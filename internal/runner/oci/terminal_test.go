package oci

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"berth/internal/runner"
	"berth/internal/runner/streams"
)

// TestTerminal checks that a node reads and writes its terminal, and that the terminal is gone afterwards.
func TestTerminal(t *testing.T) {
	eachRuntime(t, func(t *testing.T, r Runtime) {
		n := newNode(t, r, func(in *runner.Spec) {
			in.Terminal, in.Args = true, []string{"/bin/sh", "-c", "stty -echo; tty; echo $TERM; echo ready; read x; echo got $x"}
		})
		n.create.Launch.Stdout, n.create.Launch.Stderr = nil, nil
		socket := filepath.Join(t.TempDir(), "tty")
		term, err := streams.ListenTerminal(socket)
		if err != nil {
			t.Fatal(err)
		}
		n.create.Launch.ConsoleSocket = socket
		in, typed, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		defer in.Close()
		out, err := os.Create(filepath.Join(t.TempDir(), "out"))
		if err != nil {
			t.Fatal(err)
		}
		defer out.Close()
		n.up(t)
		if err := term.Attach(in, out); err != nil {
			t.Fatal(err)
		}
		for range 200 { // until echo is off: otherwise the terminal repeats the answer
			if b, _ := os.ReadFile(out.Name()); bytes.Contains(b, []byte("ready")) {
				break
			}
			sleepMS(10)
		}
		if _, err := typed.WriteString("word\n"); err != nil {
			t.Fatal(err)
		}
		n.ended(t)
		if err := term.Drain(); err != nil {
			t.Error(err)
		}
		typed.Close()
		if err := term.Close(); err != nil {
			t.Error(err)
		}
		got, err := os.ReadFile(out.Name())
		if err != nil {
			t.Fatal(err)
		}
		want := "/dev/pts/0\nxterm\nready\ngot word\n"
		if diff := cmp.Diff(want, strings.ReplaceAll(string(got), "\r", "")); diff != "" {
			t.Error(diff)
		}
		if _, err := os.Lstat(socket); err == nil {
			t.Error("the socket is still there")
		}
	})
}
