package machine

import (
	"fmt"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"berth/internal/runner/machine/wire"
)

// mostCommands is how many commands of exec may run in a machine at once.
const mostCommands = 64

// channel is a command in the guest.
type channel struct {
	number    uint32
	started   chan *wire.Failure
	ended     chan wire.End
	input     *wire.Sender
	stdin     *input
	fed       bool // feed closes stdin
	oneOutput bool // standard error is standard output
	sizes     *sizes
	outputs   map[wire.Kind]*wire.Receiver
	answered  bool
	over      bool

	signals sync.Mutex  // held while a signal is sent
	heard   []chan bool // who asked for signals whose effect the guest has not told, in their order; relay.mu guards it
}

// open opens a channel for a command with three streams, which it takes over. On a terminal the second is its output, and the third
// has its sizes.
func (r *relay) open(first, terminal bool, files []*os.File) (*channel, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.channels) > mostCommands {
		return nil, fmt.Errorf("%w: %d commands run in the machine by exec", unix.EAGAIN, mostCommands)
	}
	c := &channel{started: make(chan *wire.Failure, 1), ended: make(chan wire.End, 1), stdin: newInput(files[0])}
	if terminal {
		c.sizes = &sizes{files[2]}
	} else {
		c.oneOutput = onePlace(files[1], files[2])
	}
	if !first {
		r.last++
		c.number = r.last
	}
	c.input = wire.NewSender(r.out, c.number, wire.Input, c.stdin.take)
	c.outputs = map[wire.Kind]*wire.Receiver{
		wire.Output: wire.NewReceiver(r.out, c.number, wire.Output, files[1], func() { closeUnlessOwn(files[1]) }),
	}
	switch {
	case terminal:
	case c.oneOutput:
		closeUnlessOwn(files[2])
	default:
		c.outputs[wire.Error] = wire.NewReceiver(r.out, c.number, wire.Error, files[2], func() { closeUnlessOwn(files[2]) })
	}
	r.channels[c.number] = c
	return c, nil
}

// onePlace reports whether two streams lead to one file.
func onePlace(a, b *os.File) bool {
	x, err := a.Stat()
	if err != nil {
		return false
	}
	y, err := b.Stat()
	return err == nil && os.SameFile(x, y)
}

// closeUnlessOwn closes a stream that came with a request.
func closeUnlessOwn(f *os.File) {
	if f != os.Stdin && f != os.Stdout && f != os.Stderr {
		f.Close()
	}
}

// feed sends what a command reads. It may outlive the command where its input is no pipe, in a read.
func (c *channel) feed(r *relay) {
	defer c.stdin.close()
	defer c.input.Close()
	b := make([]byte, wire.Window/2)
	for {
		n, err := c.stdin.next(b)
		if _, failed := c.input.Write(b[:n]); failed != nil {
			return
		}
		if c.stdin.peeks() && !c.input.Settle() {
			return
		}
		if err != nil {
			c.input.Close()
			c.stdin.close() // now: the guest may keep Send waiting
			_ = r.out.Send(wire.Input, c.number, nil)
			return
		}
	}
}

// end ends a command's streams: what the guest has sent so far is written, and nothing that comes later.
func (c *channel) end() {
	for _, o := range c.outputs {
		o.End()
	}
	c.input.Close()
	c.stdin.end()
	if !c.fed {
		c.stdin.close()
	}
	if c.sizes != nil {
		c.sizes.f.Close() // ends follow
	}
}

// close forgets a channel once its output is written.
func (r *relay) close(c *channel) {
	c.end()
	for _, o := range c.outputs {
		o.Flush()
	}
	r.mu.Lock()
	delete(r.channels, c.number)
	r.mu.Unlock()
}

// signal sends a signal to a command and waits for the guest's word on its effect.
func (r *relay) signal(number uint32, sig int) *answer {
	r.mu.Lock()
	c := r.channels[number]
	r.mu.Unlock()
	if c == nil {
		return &answer{}
	}
	heard, err := r.send(c, sig)
	if err != nil {
		return r.silent(err.Error())
	}
	late, done := within(hearTime)
	defer done()
	effect, ok := next(late, r, heard)
	if !ok {
		return r.silent(fmt.Sprintf("the guest did not say in %s whether the signal had an effect", hearTime))
	}
	return &answer{Heard: effect}
}

// hearTime is how long the guest may take to say whether a signal had an effect. Who stops a node waits for that first.
const hearTime = 10 * time.Second

// mostSignals is how many signals may be on their way to a command.
const mostSignals = 64

// send sends a signal to a command, also to one that the guest will start only later. SIGKILL goes to its whole process group.
func (r *relay) send(c *channel, sig int) (heard <-chan bool, err error) {
	if sig < 1 || sig > 64 {
		return nil, fmt.Errorf("%d is no signal", sig)
	}
	c.signals.Lock()
	defer c.signals.Unlock()
	waits := make(chan bool, 1)
	r.mu.Lock()
	full := len(c.heard) == mostSignals
	if !full {
		c.heard = append(c.heard, waits)
	}
	r.mu.Unlock()
	if full {
		return nil, fmt.Errorf("the guest has not answered to %d signals before", mostSignals)
	}
	return waits, r.out.Send(wire.Signal, c.number, []byte{byte(sig)})
}
