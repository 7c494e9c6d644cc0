package streams

import (
	"bytes"
	"io"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"berth/test/testkit"
)

// TestRemote: a terminal in a machine is carried as bytes and sizes, until either side has gone.
func TestRemote(t *testing.T) {
	for how, remote := range map[string]func(t *testing.T) (*Terminal, Remote){
		"opened here": func(t *testing.T) (*Terminal, Remote) {
			term, far, err := OpenRemote()
			testkit.Must(t, err)
			return term, far
		},
		"sent": func(t *testing.T) (*Terminal, Remote) {
			socket := filepath.Join(t.TempDir(), "tty")
			term, err := ListenTerminal(socket)
			testkit.Must(t, err)
			far, err := SendRemote(socket)
			testkit.Must(t, err)
			return term, far
		},
	} {
		t.Run(how, func(t *testing.T) {
			term, far := remote(t)
			tty, master := testkit.Terminal(t)
			testkit.Resize(t, tty, 33, 77)
			out := open(t, filepath.Join(t.TempDir(), "out"), os.O_CREATE|os.O_WRONLY)
			testkit.Must(t, term.Attach(tty, out))
			comes := func(from *os.File, want []byte) {
				t.Helper()
				testkit.Must(t, from.SetReadDeadline(time.Now().Add(testkit.Bound())))
				b := make([]byte, len(want))
				if _, err := io.ReadFull(from, b); err != nil || !bytes.Equal(b, want) {
					t.Errorf("%q comes, not %q: %v", b, want, err)
				}
			}
			comes(far.Sizes, AppendSize(nil, 33, 77))
			testkit.Resize(t, tty, 44, 300)
			testkit.Must(t, unix.Kill(os.Getpid(), unix.SIGWINCH)) // the terminal is not this process's own
			comes(far.Sizes, []byte{0, 44, 1, 44})
			_, err := master.WriteString("\x03")
			testkit.Must(t, err)
			comes(far.Data, []byte("\x03"))
			_, err = far.Data.WriteString("shown\r\n")
			testkit.Must(t, err)
			testkit.Must(t, far.Close())
			testkit.Must(t, term.Drain())
			testkit.Must(t, term.Close())
			if b, err := os.ReadFile(out.Name()); string(b) != "shown\r\n" || err != nil {
				t.Errorf("%q is shown: %v", b, err)
			}

			term, far = remote(t)
			testkit.Must(t, term.Attach(tty, out))
			testkit.Must(t, term.Close())
			testkit.Must(t, term.Drain()) // nothing uses out any more
			testkit.Must(t, far.Data.SetReadDeadline(time.Now().Add(testkit.Bound())))
			if _, err := far.Data.Read(make([]byte, 1)); err != io.EOF {
				t.Errorf("after its user has gone: %v", err)
			}
			testkit.Must(t, far.Close())
		})
	}
}
