package machine

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"sync"
	"time"
	"unicode"

	"berth/internal/runner"
	"berth/internal/runner/machine/wire"
)

// mostRequest is the most bytes of a request: what goes into one frame, as JSON.
const mostRequest = wire.MostFrame + 4096

// relay passes between the guest's program and those who ask the monitor.
type relay struct {
	m     *monitor
	out   *wire.Writer
	ended chan int // the exit status of the node's command

	mu       sync.Mutex
	hello    chan struct{} // closed when the guest has greeted
	begun    bool          // the guest runs, or ran
	answered chan struct{} // closed when who began it has its answer
	told     chan struct{} // closed when what begin waits for has come, or never will
	broken   chan struct{} // closed when the guest's line is of no more use
	why      error         // read after broken is closed
	channels map[uint32]*channel
	last     uint32
}

// lineToGuest is the line to the guest. A guest that reads nothing for so long has no line any more: what comes after half a frame
// would be taken for its rest.
type lineToGuest struct {
	net.Conn
	relay *relay
}

// waits is into how many waits that of a write is divided. Each is short, so that a machine that was frozen, and this monitor with
// it, has time to read once it goes on.
const waits = 30

func (l lineToGuest) Write(b []byte) (n int, err error) {
	for range waits {
		_ = l.SetWriteDeadline(time.Now().Add(answerTime / waits))
		var more int
		more, err = l.Conn.Write(b[n:])
		if n += more; !errors.Is(err, os.ErrDeadlineExceeded) {
			break
		}
	}
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded):
		l.relay.fail(fmt.Errorf("it read nothing for %s", answerTime))
	case err != nil: // QEMU has ended, and its last words are read before the line ends
		select {
		case <-l.relay.broken:
		case <-time.After(answerTime):
			l.relay.fail(err)
		}
	}
	return n, err
}

func newRelay(m *monitor) *relay {
	r := &relay{
		m: m, ended: make(chan int, 1), hello: make(chan struct{}), broken: make(chan struct{}), channels: map[uint32]*channel{},
		answered: make(chan struct{}), told: make(chan struct{}),
	}
	r.out = wire.NewWriter(lineToGuest{m.lines[1], r})
	go func() { r.fail(r.read()) }()
	return r
}

// fail ends all that goes over the guest's line.
func (r *relay) fail(why error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	select {
	case <-r.broken:
		return
	default:
	}
	r.why = why
	close(r.broken)
	r.m.lines[1].Close()
	for _, c := range r.channels {
		c.input.Close()
		for _, o := range c.outputs {
			o.End()
		}
	}
	if !errors.Is(why, io.EOF) {
		go fmt.Fprintf(r.m.console, "berth: the machine's guest broke its line: %v\n", why) // nobody may read it
	}
}

// gone ends all that waits for the machine.
func (r *relay) gone() { r.fail(io.EOF) }

// read reads what the guest says. Nothing in it waits: what a reader has not taken yet is bounded.
func (r *relay) read() error {
	in := bufio.NewReaderSize(r.m.lines[1], wire.MostFrame)
	for {
		f, err := wire.Read(in)
		if err != nil {
			return err
		}
		if err := r.take(f); err != nil {
			return err
		}
	}
}

func (r *relay) take(f wire.Frame) error {
	if f.Kind == wire.Hello {
		return r.greet(f)
	}
	r.mu.Lock()
	c := r.channels[f.Channel]
	r.mu.Unlock()
	if f.Kind == wire.Heard {
		return r.hear(c, f.Payload)
	}
	if c == nil || c.over {
		return nil // what was on its way when the command ended
	}
	switch f.Kind {
	case wire.Started, wire.Failed:
		if c.answered {
			return errors.New("a command that starts twice")
		}
		c.answered = true
		var failure *wire.Failure
		if f.Kind == wire.Failed {
			failure = &wire.Failure{}
			if err := f.Decode(failure); err != nil {
				return err
			}
			failure.Why = oneLine(failure.Why)
			if failure.Code != 0 && failure.Code != runner.ExitCannotRun && failure.Code != runner.ExitNotFound {
				return fmt.Errorf("a command that cannot run, with code %d", failure.Code)
			}
			c.over = true
		}
		c.started <- failure
	case wire.Output, wire.Error:
		o := c.outputs[f.Kind]
		if o == nil {
			return errors.New("output of a stream that the command has not")
		}
		return o.Take(f.Payload)
	case wire.Grant:
		stream, n, err := f.Granted()
		if err != nil || stream != wire.Input {
			return errors.Join(err, errors.New("a grant for no stream"))
		}
		return c.input.Grant(n)
	case wire.Closed:
		if string(f.Payload) != string(wire.Input) {
			return errors.New("the end of no stream")
		}
		c.input.Close()
		c.stdin.end()
	case wire.Ended:
		var e wire.End
		if err := f.Decode(&e); err != nil {
			return err
		}
		if !c.answered {
			return errors.New("a command that ended before it started")
		}
		c.over = true
		c.input.Close()
		for _, o := range c.outputs {
			o.End()
		}
		c.ended <- e
	default:
		return fmt.Errorf("a frame of an unknown kind %q", f.Kind)
	}
	return nil
}

// oneLine makes what a guest says one line of 500 bytes at most, so that it cannot be taken for several messages of Berth's.
func oneLine(s string) string {
	return strings.Map(func(c rune) rune {
		if !unicode.IsPrint(c) {
			return ' '
		}
		return c
	}, strings.ToValidUTF8(s[:min(len(s), 500)], "?"))
}

// hear takes the guest's word on the effect of a signal. They come in the order of the signals.
func (r *relay) hear(c *channel, word []byte) error {
	if len(word) != 1 {
		return fmt.Errorf("a word on a signal that has %d bytes", len(word))
	}
	if c == nil {
		return nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(c.heard) == 0 {
		return errors.New("a word on a signal that it was not sent")
	}
	c.heard[0] <- word[0] == 1 // there is room for one
	c.heard = c.heard[1:]
	return nil
}

func (r *relay) greet(f wire.Frame) error {
	var g wire.Greeting
	if err := f.Decode(&g); err != nil {
		return err
	}
	if g.Version != wire.Version {
		return fmt.Errorf("the guest's program is of version %d, not %d: install berth and berth-guest of one version", g.Version, wire.Version)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	select {
	case <-r.hello:
		return errors.New("a guest that greets twice")
	default:
		close(r.hello)
	}
	return nil
}

// next waits for what comes of a command, until the guest's line breaks or it is late. What came before counts: ok is true then.
func next[T any](late context.Context, r *relay, from <-chan T) (v T, ok bool) {
	select {
	case v = <-from:
		return v, true
	case <-r.broken:
	case <-late.Done():
	}
	select {
	case v = <-from:
		return v, true
	default:
		return v, false
	}
}

// within is a context for a wait.
func within(t time.Duration) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.Background(), t)
}

// start waits until a command that was asked for runs.
func (r *relay) start(late context.Context, c *channel) *answer {
	f, ok := next(late, r, c.started)
	if !ok {
		return r.silent("the guest did not answer in time; if the command starts yet, it is killed")
	}
	if f == nil {
		c.fed = true
		go c.feed(r)
		if c.sizes != nil {
			go c.sizes.follow(func(size []byte) error { return r.out.Send(wire.Resize, c.number, size) })
		}
	}
	return &answer{Failure: f}
}

// silent is the answer where the guest said nothing: its line is broken, or why.
func (r *relay) silent(why string) *answer {
	select {
	case <-r.broken:
		return r.lost()
	default:
		return &answer{Failure: &wire.Failure{Why: why}}
	}
}

func (r *relay) lost() *answer {
	if errors.Is(r.why, io.EOF) {
		return &answer{Gone: true}
	}
	return &answer{Failure: &wire.Failure{Why: "the guest broke its line: " + r.why.Error()}}
}

// unbooted is the answer where the guest did not boot: it ended, or why, and what is known of it.
func (r *relay) unbooted(why string) *answer {
	if a := r.silent(why); !a.Gone {
		why = a.Failure.Why
	} else {
		why = "the machine ended while it booted"
	}
	return &answer{Failure: &wire.Failure{Why: why + r.m.words.after("; its console says last:\n") + r.m.complaint.after("; QEMU says: ")}}
}

// lastWord returns the exit status of the node's command, once the machine has ended and who started it knows.
func (r *relay) lastWord() (code int, told bool) {
	r.mu.Lock()
	begun := r.begun
	r.mu.Unlock()
	if begun {
		<-r.answered
		<-r.told
	}
	select {
	case code := <-r.ended:
		return code, true
	default:
		return 0, false
	}
}

// begin begins the guest, and says how that went.
func (r *relay) begin(say func(*answer)) {
	r.mu.Lock()
	was := r.begun
	r.begun = true
	r.mu.Unlock()
	if was {
		say(&answer{Failure: &wire.Failure{Why: "the machine runs already"}})
		return
	}
	say(r.boot())
	close(r.answered)
}

// boot lets the guest boot and run the node's command.
func (r *relay) boot() *answer {
	started := false
	defer func() {
		if !started {
			close(r.told)
		}
	}()
	if err := r.m.qmp.call(context.Background(), "cont", nil, nil); err != nil {
		return &answer{Failure: &wire.Failure{Why: err.Error()}}
	}
	late, done := within(bootTime)
	defer done()
	if _, ok := next(late, r, r.hello); !ok {
		return r.unbooted(fmt.Sprintf("the guest did not greet in %s", bootTime))
	}
	setup := r.m.launch.Setup
	files := []*os.File{os.Stdin, os.Stdout, os.Stderr}
	if setup.Command.Terminal != nil {
		files[2] = r.m.sizes
	}
	c, err := r.open(true, setup.Command.Terminal != nil, files)
	if err == nil {
		if setup.Command.OneOutput = c.oneOutput; c.sizes != nil {
			setup.Command.Terminal = c.sizes.now()
		}
		err = r.out.SendJSON(wire.Begin, 0, &setup)
	}
	if err != nil {
		return r.silent(err.Error())
	}
	a := r.start(late, c)
	if a.Gone {
		return r.unbooted("")
	}
	if a.Failure == nil {
		started = true
		go func() {
			defer close(r.told)
			e, ok := next(context.Background(), r, c.ended)
			if !ok {
				return
			}
			r.close(c)
			code := e.Code & 0xff
			if e.Signal > 0 {
				code = 128 + e.Signal&0x7f
			}
			r.ended <- code
		}()
	}
	return a
}
