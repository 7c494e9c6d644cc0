package machine

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"berth/internal/runner/machine/wire"
	"berth/internal/runner/streams"
	"berth/test/testkit"
)

// TestTerminalOfExec: what is typed and the sizes of the user's terminal go to the guest, what it shows comes back, and a user who has
// gone hangs it up.
func TestTerminalOfExec(t *testing.T) {
	r, guest := guestLine(t)
	term, far, err := streams.OpenRemote()
	testkit.Must(t, err)
	defer term.Close()
	line, monitor := pair(t)
	go r.serve(monitor)
	started := make(chan *answer, 1)
	go func() {
		c := &wire.Command{Args: []string{"x"}, Env: []string{"A=b"}, Terminal: &wire.Size{Rows: 24, Columns: 80}}
		a, err := line.ask(t.Context(), &request{Do: doTerminal, Command: c}, []*os.File{far.Data, far.Data, far.Sizes}, testkit.Bound())
		if err != nil {
			t.Error(err)
		}
		far.Close()
		started <- a
	}()
	var c wire.Command
	testkit.Must(t, hears(t, guest, wire.Run).Decode(&c))
	if c.Terminal == nil || *c.Terminal != (wire.Size{Rows: 24, Columns: 80}) || c.OneOutput || !slices.Equal(c.Env, []string{"TERM=xterm", "A=b"}) {
		t.Errorf("the guest gets %+v", c)
	}
	says(t, guest, wire.Started, 1, "")
	if a := <-started; a == nil || a.Failure != nil {
		t.Fatalf("the start: %+v", a)
	}

	tty, master := testkit.Terminal(t)
	testkit.Resize(t, tty, 33, 77)
	out, err := os.Create(filepath.Join(t.TempDir(), "out"))
	testkit.Must(t, err)
	defer out.Close()
	testkit.Must(t, term.Attach(tty, out))
	if size, err := hears(t, guest, wire.Resize).Size(); size != (wire.Size{Rows: 33, Columns: 77}) || err != nil {
		t.Errorf("the guest's terminal gets the size %+v: %v", size, err)
	}
	_, err = master.WriteString("\x03")
	testkit.Must(t, err)
	if f := hears(t, guest, wire.Input); string(f.Payload) != "\x03" {
		t.Errorf("the guest gets %q", f.Payload)
	}
	says(t, guest, wire.Output, 1, "shown\r\n")
	hears(t, guest, wire.Grant)
	testkit.Eventually(t, "the user sees it", func() bool { b, _ := os.ReadFile(out.Name()); return string(b) == "shown\r\n" })
	testkit.Must(t, term.Close())
	if f := hears(t, guest, wire.Input); len(f.Payload) > 0 {
		t.Errorf("after its user has gone, the guest gets %q", f.Payload)
	}
	says(t, guest, wire.Ended, 1, `{"signal":1}`)
	if a, err := line.next(); err != nil || a.End == nil || a.End.Signal != 1 {
		t.Errorf("the end: %+v %v", a, err)
	}
}

// TestTerminalEnds: the user's side of a terminal ends with the command, after the last that it showed.
func TestTerminalEnds(t *testing.T) {
	r, guest := guestLine(t)
	term, far, err := streams.OpenRemote()
	testkit.Must(t, err)
	again, err := unix.FcntlInt(far.Data.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	testkit.Must(t, err)
	_, told := asks(t, r, []*os.File{far.Data, os.NewFile(uintptr(again), "terminal"), far.Sizes}, &wire.Command{Args: []string{"x"}, Terminal: &wire.Size{}})
	hears(t, guest, wire.Run)
	says(t, guest, wire.Started, 1, "")
	<-told
	go func() {
		for {
			if _, err := wire.Read(guest); err != nil {
				return
			}
		}
	}()
	out, err := os.Create(filepath.Join(t.TempDir(), "out"))
	testkit.Must(t, err)
	defer out.Close()
	typed, _, err := os.Pipe()
	testkit.Must(t, err)
	testkit.Must(t, term.Attach(typed, out))
	last := strings.Repeat("0123456789abcde\n", wire.Window/32)
	for piece := range slices.Chunk([]byte(last), wire.Piece) {
		says(t, guest, wire.Output, 1, string(piece))
	}
	says(t, guest, wire.Ended, 1, `{"code":7}`)
	if a := <-told; a.End == nil || a.End.Code != 7 {
		t.Errorf("the end: %+v", a)
	}
	testkit.Must(t, term.Drain())
	testkit.Must(t, term.Close())
	if b, err := os.ReadFile(out.Name()); !bytes.Equal(b, []byte(last)) || err != nil {
		t.Errorf("%d of %d bytes are shown: %v", len(b), len(last), err)
	}
}

// TestSizes: a guest that boots begins with the last size that its user's terminal had.
func TestSizes(t *testing.T) {
	var ends [2]int
	testkit.Must(t, unix.Pipe2(ends[:], unix.O_CLOEXEC|unix.O_NONBLOCK))
	from, to := os.NewFile(uintptr(ends[0]), "from"), os.NewFile(uintptr(ends[1]), "to")
	defer from.Close()
	defer to.Close()
	s := sizes{from}
	if size := s.now(); *size != (wire.Size{}) {
		t.Errorf("before any has come, the size is %+v", size)
	}
	_, err := to.Write(streams.AppendSize(streams.AppendSize(nil, 24, 80), 500, 1000))
	testkit.Must(t, err)
	if size := s.now(); *size != (wire.Size{Rows: 500, Columns: 1000}) {
		t.Errorf("the size is %+v", size)
	}
	from.Close()
	if size := s.now(); *size != (wire.Size{}) {
		t.Errorf("of a closed pipe, the size is %+v", size)
	}
}
