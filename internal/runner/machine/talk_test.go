package machine

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"berth/internal/runner/machine/wire"
	"berth/test/testkit"
)

// hears returns the next frame of a kind that the guest gets.
func hears(t testing.TB, guest net.Conn, kind wire.Kind) wire.Frame {
	t.Helper()
	for {
		f, err := wire.Read(guest)
		if err != nil {
			t.Fatalf("the guest waits for a frame %q: %v", kind, err)
		}
		if f.Kind == kind {
			return f
		}
	}
}

// says sends a frame from the guest.
func says(t testing.TB, guest net.Conn, kind wire.Kind, channel uint32, payload string) {
	t.Helper()
	if err := wire.NewWriter(guest).Send(kind, channel, []byte(payload)); err != nil {
		t.Errorf("the guest says %q: %v", kind, err)
	}
}

// asks has the relay run a command, and returns the caller's end and what he is told.
func asks(t testing.TB, r *relay, files []*os.File, c *wire.Command) (caller net.Conn, told chan *answer) {
	t.Helper()
	caller, line := net.Pipe()
	told = make(chan *answer, 2)
	go func() {
		r.exec(line, &request{Do: doExec, Command: c}, files, func(a *answer) { told <- a })
		close(told)
	}()
	t.Cleanup(func() { caller.Close(); line.Close() })
	return caller, told
}

// TestTimeoutOfHost: a command whose time is over has ended for its caller, whatever the guest does.
func TestTimeoutOfHost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, guest := guestLine(t)
		began := time.Now()
		_, told := asks(t, r, nullFiles(t), &wire.Command{Args: []string{"x"}, Timeout: 1000})
		hears(t, guest, wire.Run)
		says(t, guest, wire.Started, 1, "")
		if a := <-told; a.Failure != nil {
			t.Fatalf("the start: %+v", a.Failure)
		}
		if f := hears(t, guest, wire.Signal); f.Payload[0] != byte(unix.SIGKILL) {
			t.Errorf("the guest got signal %d", f.Payload[0])
		}
		if a := <-told; a == nil || a.End == nil || a.End.Signal != int(unix.SIGKILL) || time.Since(began) != time.Second+overtime {
			t.Errorf("after %s the caller is told %+v", time.Since(began), a)
		}
	})
}

// TestCallerGone: the streams of a caller who has gone end at once, whatever the guest does.
func TestCallerGone(t *testing.T) {
	r, guest := guestLine(t)
	out, theirs, err := os.Pipe()
	testkit.Must(t, err)
	defer out.Close()
	files := nullFiles(t)
	files[1] = theirs
	caller, told := asks(t, r, files, &wire.Command{Args: []string{"x"}})
	hears(t, guest, wire.Run)
	says(t, guest, wire.Started, 1, "")
	<-told
	caller.Close()
	if f := hears(t, guest, wire.Signal); f.Payload[0] != byte(unix.SIGKILL) {
		t.Errorf("the guest got signal %d", f.Payload[0])
	}
	testkit.Must(t, out.SetReadDeadline(time.Now().Add(answerTime/2)))
	if _, err := out.Read(make([]byte, 1)); err != io.EOF {
		t.Errorf("the output of a caller who has gone: %v", err)
	}
	says(t, guest, wire.Output, 1, "late")
	says(t, guest, wire.Ended, 1, `{"signal":9}`)
	if a, more := <-told; more {
		t.Errorf("he is told %+v", a)
	}
}

// TestWordsOfGuest: what a guest says is one short line.
func TestWordsOfGuest(t *testing.T) {
	r, guest := guestLine(t)
	_, told := asks(t, r, nullFiles(t), &wire.Command{Args: []string{"x"}})
	hears(t, guest, wire.Run)
	says(t, guest, wire.Failed, 1, `{"code":127,"why":"no\nberth: \u001b[2J`+strings.Repeat("x", 1000)+`"}`)
	if a := <-told; a == nil || a.Failure == nil || !strings.HasPrefix(a.Failure.Why, "no berth:  [2Jxxx") || len(a.Failure.Why) > 500 {
		t.Errorf("the caller is told %+v", a)
	}
	hears(t, guest, wire.Signal)
}

// TestSilentStart: a command that the guest did not start in time is killed when it starts.
func TestSilentStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, guest := guestLine(t)
		_, told := asks(t, r, nullFiles(t), &wire.Command{Args: []string{"x"}})
		hears(t, guest, wire.Run)
		if a := <-told; a.Failure == nil {
			t.Errorf("the caller is told %+v", a)
		}
		if f := hears(t, guest, wire.Signal); f.Channel != 1 || f.Payload[0] != byte(unix.SIGKILL) {
			t.Errorf("the guest got %+v", f)
		}
	})
}

// TestBootTime: booting and starting the command have one time together.
func TestBootTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, guest := guestLine(t)
		ours, qemu := net.Pipe()
		t.Cleanup(func() { ours.Close(); qemu.Close() })
		r.m.qmp = newQMP(ours)
		go r.m.qmp.read(nil)
		go func() {
			var c commandQMP
			_ = json.NewDecoder(qemu).Decode(&c)
			_ = json.NewEncoder(qemu).Encode(answerQMP{ID: c.ID})
		}()
		began, booted := time.Now(), make(chan *answer, 1)
		go func() { r.begin(func(a *answer) { booted <- a }) }()
		time.Sleep(bootTime - time.Second)
		says(t, guest, wire.Hello, 0, `{"version":1}`)
		hears(t, guest, wire.Begin)
		if a := <-booted; a.Failure == nil || time.Since(began) != bootTime {
			t.Errorf("after %s: %+v", time.Since(began), a)
		}
	})
}

// late is a line on which so many writes time out before one byte was taken.
type late struct {
	net.Conn
	writes int
}

func (l *late) Write(b []byte) (int, error) {
	if l.writes--; l.writes >= 0 {
		return 0, os.ErrDeadlineExceeded
	}
	return l.Conn.Write(b)
}

// TestLateWrite: after a write that was cut off the guest has no line any more, and nothing that follows is taken for the rest. A write
// that was late once, as in a machine that was paused, goes on where it was.
func TestLateWrite(t *testing.T) {
	for _, writes := range []int{1, 1000} {
		r, theirs := guestLineOn(t, func(c net.Conn) net.Conn { return &late{c, writes} })
		got := make(chan []byte, 1)
		go func() {
			b, _ := io.ReadAll(theirs)
			got <- b
		}()
		err := r.out.Send(wire.Signal, 1, []byte{9})
		broke := false
		select {
		case <-r.broken:
			broke = true
		default:
		}
		if want := writes > 1; (err != nil) != want || broke != want {
			t.Errorf("%d late writes: %v, the line broke: %v", writes, err, broke)
		}
		_ = r.out.Send(wire.Input, 1, []byte("more"))
		r.m.lines[1].Close()
		if b := <-got; writes > 1 && len(b) > 0 {
			t.Errorf("the guest got %q after half a frame", b)
		}
		<-r.broken
	}
}

// deaf is a line whose other end does not take anything any more, and may still have said something.
type deaf struct{ net.Conn }

func (deaf) Write([]byte) (int, error) { return 0, unix.EPIPE }

// TestLastWordsOfDeaf: a write to an emulator that has ended does not lose what the guest said before.
func TestLastWordsOfDeaf(t *testing.T) {
	r, guest := guestLineOn(t, func(c net.Conn) net.Conn { return deaf{c} })
	c, err := r.open(false, false, nullFiles(t))
	testkit.Must(t, err)
	sent := make(chan error, 1)
	go func() { sent <- r.out.Send(wire.Signal, 1, []byte{9}) }()
	says(t, guest, wire.Started, 1, "")
	says(t, guest, wire.Ended, 1, "{}")
	guest.Close()
	if err := <-sent; err == nil {
		t.Error("a deaf line took a signal")
	}
	if _, ok := next(context.Background(), r, c.ended); !ok {
		t.Error("the end is lost")
	}
	r.close(c)
}

// TestSilentConsole: whoever does not read the node's log holds up neither the machine nor its end.
func TestSilentConsole(t *testing.T) {
	r, _ := guestLine(t)
	from, to, err := os.Pipe()
	testkit.Must(t, err)
	t.Cleanup(func() { from.Close(); to.Close() })
	testkit.Must(t, to.SetWriteDeadline(time.Now().Add(10*time.Millisecond)))
	_, err = to.Write(make([]byte, 1<<20)) // fills it
	testkit.Must(t, to.SetWriteDeadline(time.Time{}))
	r.m.console = to
	ended := make(chan struct{})
	go func() {
		r.fail(io.ErrUnexpectedEOF)
		r.gone()
		close(ended)
	}()
	select {
	case <-ended:
	case <-time.After(testkit.Bound()):
		t.Fatal("the end waits for whoever reads the console")
	}
	if err == nil {
		t.Error("the pipe is not full")
	}
}

// TestWordsOnSignals: each signal gets its own answer, in their order; what was not asked for breaks the line.
func TestWordsOnSignals(t *testing.T) {
	r, guest := guestLine(t)
	c, err := r.open(false, false, nullFiles(t))
	testkit.Must(t, err)
	defer r.close(c)
	first := make(chan *answer, 1)
	go func() { first <- r.signal(1, 1) }()
	hears(t, guest, wire.Signal)
	second := make(chan *answer, 1)
	go func() { second <- r.signal(1, 2) }()
	hears(t, guest, wire.Signal)
	says(t, guest, wire.Heard, 1, "\x01")
	says(t, guest, wire.Heard, 1, "\x00")
	if a, b := <-first, <-second; !a.Heard || b.Heard || a.Failure != nil || b.Failure != nil {
		t.Errorf("the words are %+v and %+v", a, b)
	}
	for _, word := range []string{"\x01", "\x01\x01"} {
		r, guest := guestLine(t)
		c, err := r.open(false, false, nullFiles(t))
		testkit.Must(t, err)
		says(t, guest, wire.Heard, 1, word)
		<-r.broken
		r.close(c)
	}
}

// TestLastWord: how a command ended counts, though the line broke right after.
func TestLastWord(t *testing.T) {
	for range 50 {
		r, guest := guestLine(t)
		c, err := r.open(false, false, nullFiles(t))
		testkit.Must(t, err)
		says(t, guest, wire.Started, 1, "")
		says(t, guest, wire.Ended, 1, "{}")
		guest.Close()
		<-r.broken
		if _, ok := next(context.Background(), r, c.ended); !ok {
			t.Fatal("the end is lost")
		}
		r.close(c)
	}
}

// TestInputStays: of a pipe only what the command has read is taken, and the rest stays for its caller.
func TestInputStays(t *testing.T) {
	for _, flags := range []int{unix.O_NONBLOCK, 0} {
		r, guest := guestLine(t)
		var ends [2]int
		testkit.Must(t, unix.Pipe2(ends[:], unix.O_CLOEXEC|flags))
		from, to := os.NewFile(uintptr(ends[0]), "from"), os.NewFile(uintptr(ends[1]), "to")
		again, err := unix.Dup(ends[0])
		testkit.Must(t, err)
		rest := os.NewFile(uintptr(again), "rest")
		files := nullFiles(t)
		files[0] = from
		_, told := asks(t, r, files, &wire.Command{Args: []string{"x"}})
		hears(t, guest, wire.Run)
		says(t, guest, wire.Started, 1, "")
		<-told
		_, err = to.WriteString("read by it, not read")
		testkit.Must(t, err)
		if f := hears(t, guest, wire.Input); string(f.Payload) != "read by it, not read" {
			t.Errorf("the guest gets %q", f.Payload)
		}
		says(t, guest, wire.Grant, 1, "i\x00\x00\x00\x0b")
		says(t, guest, wire.Ended, 1, "{}")
		if a := <-told; a.End == nil {
			t.Errorf("the caller is told %+v", a)
		}
		b := make([]byte, 64)
		n, err := rest.Read(b)
		if string(b[:n]) != " not read" {
			t.Errorf("%q is left: %v", b[:n], err)
		}
		to.Close()
		rest.Close()
	}
}

// TestOneOutput: streams that lead to one file are one, so that their order stays.
func TestOneOutput(t *testing.T) {
	r, guest := guestLine(t)
	f, err := os.CreateTemp(t.TempDir(), "")
	testkit.Must(t, err)
	also, err := os.OpenFile(f.Name(), os.O_WRONLY, 0)
	testkit.Must(t, err)
	_, _ = asks(t, r, []*os.File{nullFiles(t)[0], f, also}, &wire.Command{Args: []string{"x"}})
	var c wire.Command
	testkit.Must(t, hears(t, guest, wire.Run).Decode(&c))
	if !c.OneOutput {
		t.Error("the guest makes two outputs of one")
	}
	says(t, guest, wire.Started, 1, "")
	says(t, guest, wire.Error, 1, "x")
	<-r.broken
}

// pair returns both ends of a line to a monitor.
func pair(t *testing.T) (*control, *net.UnixConn) {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	testkit.Must(t, err)
	var ends [2]*net.UnixConn
	for i, fd := range fds {
		f := os.NewFile(uintptr(fd), "line")
		c, err := net.FileConn(f)
		testkit.Must(t, err)
		f.Close()
		ends[i] = c.(*net.UnixConn)
		t.Cleanup(func() { c.Close() })
	}
	return newControl(ends[0]), ends[1]
}

// TestBoundedAnswers: a monitor that a guest has taken over gets neither the memory nor the time of who asks it.
func TestBoundedAnswers(t *testing.T) {
	c, monitor := pair(t)
	go func() { _, _ = monitor.Write(bytes.Repeat([]byte("x"), 2*mostAnswer)); monitor.Close() }()
	if _, err := c.next(); err == nil || !strings.Contains(err.Error(), "more than") {
		t.Errorf("a long answer: %v", err)
	}
	c, _ = pair(t)
	if _, err := c.ask(t.Context(), &request{Do: doStart}, nil, time.Millisecond); err == nil || !strings.Contains(err.Error(), "did not answer in 1ms") {
		t.Errorf("no answer: %v", err)
	}
	if err := c.send(&request{Do: strings.Repeat("x", mostRequest)}, nil); err == nil {
		t.Error("a request is sent that no monitor takes")
	}
}

// TestOtherBerth: a monitor says so to a berth that it does not understand.
func TestOtherBerth(t *testing.T) {
	r, _ := guestLine(t)
	r.m.launch.Node = "m1"
	for line, want := range map[string]string{
		`{"do":"start"}`:                 "berth restart m1",
		`{"version":9,"do":"x"}`:         "berth restart m1",
		`{"version":1,"do":"dance"}`:     "dance",
		`{"version":1,"do":"exec"}`:      "exec",
		`[`:                              "cannot read",
		strings.Repeat("x", mostRequest): "too long",
	} {
		c, monitor := pair(t)
		go r.serve(monitor)
		_, _ = c.conn.Write([]byte(line + "\n"))
		if a, err := c.next(); err != nil || a.Failure == nil || !strings.Contains(a.Failure.Why, want) {
			t.Errorf("%.30s: %+v %v", line, a, err)
		}
	}
}

// TestLend: the monitor gets pipes that do not block, and those of the caller stay as they are.
func TestLend(t *testing.T) {
	var ends [2]int
	testkit.Must(t, unix.Pipe2(ends[:], unix.O_CLOEXEC))
	nonblocking := func(fd int) bool {
		flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFL, 0)
		testkit.Must(t, err)
		return flags&unix.O_NONBLOCK != 0
	}
	files := append(nullFiles(t)[:1], os.NewFile(uintptr(ends[0]), "from"), os.NewFile(uintptr(ends[1]), "to"))
	fds, done := lend(files)
	if len(fds) != 3 || !nonblocking(fds[1]) || !nonblocking(fds[2]) || nonblocking(ends[0]) || nonblocking(ends[1]) {
		t.Errorf("of %v it lends %v", ends, fds)
	}
	if _, err := unix.Write(fds[2], []byte("x")); err != nil {
		t.Error(err)
	}
	if n, err := unix.Read(ends[0], make([]byte, 9)); n != 1 || err != nil {
		t.Errorf("%d bytes arrive: %v", n, err)
	}
	done()
	for _, f := range files {
		f.Close()
	}
}
