package screen

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"berth/internal/node/top"
	"berth/internal/sys/text"
)

// Control sequences of a terminal: ECMA-48, and xterm's 1049, which switches to the alternate screen.
const (
	enterScreen = "\x1b[?1049h\x1b[?25l"
	leaveScreen = "\x1b[?25h\x1b[?1049l"
	toTop       = "\x1b[H"
	restOfLine  = "\x1b[K"
	restBelow   = "\x1b[J"
)

// screen is a terminal that is drawn on. close restores its former mode and content.
type screen struct {
	in, out *os.File
	was     *unix.Termios
	keys    chan byte
}

// openScreen sets the terminal so that keys arrive at once and are not echoed. Ctrl-C still sends SIGINT.
func openScreen(in *os.File, out io.Writer) (*screen, error) {
	s := &screen{in: in, out: text.Raw(out).(*os.File), keys: make(chan byte, 64)} // the caller checked that it is a terminal
	var err error
	if s.was, err = unix.IoctlGetTermios(int(in.Fd()), unix.TCGETS); err != nil {
		s.was = nil // standard input is no terminal: draw the table without keys
	}
	if err := s.take(); err != nil {
		return nil, err
	}
	go s.read()
	return s, nil
}

func (s *screen) take() error {
	if s.was != nil {
		now := *s.was
		now.Lflag &^= unix.ICANON | unix.ECHO
		now.Cc[unix.VMIN], now.Cc[unix.VTIME] = 1, 0
		if err := unix.IoctlSetTermios(int(s.in.Fd()), unix.TCSETS, &now); err != nil {
			return fmt.Errorf("take the terminal: %w", err)
		}
	}
	_, err := s.out.WriteString(enterScreen)
	return err
}

// close restores the terminal.
func (s *screen) close() {
	_, _ = s.out.WriteString(leaveScreen)
	if s.was != nil {
		_ = unix.IoctlSetTermios(int(s.in.Fd()), unix.TCSETS, s.was)
	}
}

// read passes on typed bytes. It ends with the process, because nothing wakes a blocked read of a terminal.
func (s *screen) read() {
	if s.was == nil {
		return
	}
	buf := make([]byte, 64)
	for {
		n, err := s.in.Read(buf)
		for _, b := range buf[:n] {
			s.keys <- b
		}
		if err != nil {
			close(s.keys)
			return
		}
	}
}

// suspend handles Ctrl-Z: it restores the terminal, stops the program, and takes the terminal again when the program
// continues.
func (s *screen) suspend() error {
	s.close()
	if err := unix.Kill(0, unix.SIGSTOP); err != nil { // the process group: a shell waits for all of a pipeline
		return fmt.Errorf("stop: %w", err)
	}
	return s.take()
}

// draw shows lines from the top of the screen. It writes once, so that the screen does not flicker.
func (s *screen) draw(lines []string) error {
	var b bytes.Buffer
	b.WriteString(toTop)
	for i, l := range lines {
		if i > 0 {
			b.WriteString("\r\n")
		}
		_, _ = text.NewVisible(&b).Write([]byte(l)) // to memory: cannot fail
		b.WriteString(restOfLine)
	}
	b.WriteString(restBelow)
	_, err := s.out.Write(b.Bytes())
	return err
}

func (s *screen) size() (width, height int) {
	ws, err := unix.IoctlGetWinsize(int(s.out.Fd()), unix.TIOCGWINSZ)
	if err != nil || ws.Col == 0 || ws.Row == 0 {
		return text.Width, 24
	}
	return int(ws.Col), int(ws.Row)
}

// firstInterval is the time until the first rates are shown.
const firstInterval = 300 * time.Millisecond

// Run shows samples on a terminal, the first after a moment, then one each interval, until the user quits.
func Run(ctx context.Context, in *os.File, out io.Writer, s *top.Sampler, interval time.Duration, sort string) error {
	sample, err := s.Sample(ctx)
	if err != nil {
		return err
	}
	signals := make(chan os.Signal, 8)
	signal.Notify(signals, unix.SIGWINCH, unix.SIGTSTP, unix.SIGHUP, unix.SIGQUIT)
	defer signal.Stop(signals)
	sc, err := openScreen(in, out)
	if err != nil {
		return err
	}
	defer sc.close()
	w := watch{screen: sc, view: view{sort: sort, details: true}, sample: sample}
	next := time.NewTimer(min(firstInterval, interval))
	defer next.Stop()
	for {
		if err := w.draw(); err != nil {
			return err
		}
		again := false
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-next.C:
			again = true
		case sig := <-signals:
			switch sig {
			case unix.SIGTSTP:
				if err := sc.suspend(); err != nil {
					return err
				}
			case unix.SIGWINCH:
			default:
				return context.Canceled
			}
		case key, ok := <-sc.keys:
			if !ok || w.key(key) {
				return nil
			}
			again = key == ' '
		}
		if again {
			if w.sample, err = s.Sample(ctx); err != nil {
				return err
			}
			next.Reset(interval)
		}
	}
}

// watch is the state of berth top on a terminal.
type watch struct {
	*screen
	view   view
	sample *top.Sample
	escape string // the bytes of an escape sequence read so far
}

// sortKeys are the keys that sort, in the order of Sorts.
const sortKeys = "cmrwinpa"

// key handles a key, and reports whether it quits.
func (w *watch) key(k byte) (quit bool) {
	if k == 0x1b || w.escape != "" {
		w.arrow(k)
		return false
	}
	switch i := strings.IndexByte(sortKeys, k); {
	case i >= 0:
		w.view.sort, w.view.first = Sorts()[i], 0
	case k == 'd':
		w.view.details = !w.view.details
	case k == 'k':
		w.move(-1)
	case k == 'j':
		w.move(1)
	case k == 'q', k == 'Q', k == 4: // Ctrl-D
		return true
	}
	return false
}

// arrow collects the bytes of an arrow or page key (ESC [ A, ESC [ 5 ~) and handles the key when it is complete.
func (w *watch) arrow(k byte) {
	w.escape += string(rune(k))
	page := 10
	switch strings.Replace(w.escape, "O", "[", 1) {
	case "\x1b", "\x1b[", "\x1b[5", "\x1b[6":
		return
	case "\x1b[A":
		w.move(-1)
	case "\x1b[B":
		w.move(1)
	case "\x1b[5~":
		w.move(-page)
	case "\x1b[6~":
		w.move(page)
	case "\x1b[H":
		w.view.first = 0
	}
	w.escape = ""
}

func (w *watch) move(by int) { w.view.first += by }

func (w *watch) draw() error {
	w.view.width, w.view.height = w.size()
	last := max(len(w.sample.Nodes)-1, 0)
	w.view.first = min(max(w.view.first, 0), last)
	v := w.view
	v.height = max(v.height-1, 1)
	s := *w.sample
	s.Nodes = slices.Clone(s.Nodes)
	rows := lines(&s, v)
	for len(rows) < v.height {
		rows = append(rows, "")
	}
	foot := "c cpu m memory r read w write i io n net p pressure a name · d disks · q quit"
	if w.view.first > 0 {
		foot = fmt.Sprintf("from %d of %d  ", w.view.first+1, len(s.Nodes)) + foot
	}
	return w.screen.draw(append(rows, cutLines([]string{foot}, v)...))
}
