// Package audit writes one line of JSON for each act: who asked, from where, for what, and what came of it.
package audit

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"golang.org/x/sys/unix"

	"berth/internal/may"
)

// Line is one act.
type Line struct {
	Time   time.Time `json:"time"`
	Who    string    `json:"who"`
	Role   may.Role  `json:"role"`
	Via    string    `json:"via"`            // unix | tls
	From   string    `json:"from,omitempty"` // the address, or the process and its user
	Act    may.Act   `json:"act"`
	On     string    `json:"on,omitempty"`     // a node, a host, an image
	Detail string    `json:"detail,omitempty"` // the template, the words of a command
	Result string    `json:"result"`           // begins | done | refused | failed
	Exit   *int      `json:"exit,omitempty"`   // of a command
	Error  string    `json:"error,omitempty"`
}

// The results of an act. One that changes something has a line before it, whose result is Begins: it stays alone if the agent is
// killed.
const (
	Begins  = "begins"
	Done    = "done"
	Refused = "refused"
	Failed  = "failed"
)

const (
	mostBytes = 16 << 20 // of a file; there is one old one beside it
	mostField = 1024     // bytes of a text that a user gave
)

// Log is a file of lines. Its methods may be called at the same time.
type Log struct {
	path string
	most int64

	mu   sync.Mutex
	file *os.File
	size int64
}

// Open opens the log at path for lines at its end, and makes it, root's alone. Only one process may have it open. A line that a
// killed process began is ended.
func Open(path string) (*Log, error) { return open(path, mostBytes) }

func open(path string, most int64) (*Log, error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return nil, fmt.Errorf("open audit log: %w", err)
	}
	l := &Log{path: path, most: most}
	return l, l.open()
}

func (l *Log) open() error {
	f, err := os.OpenFile(l.path, os.O_CREATE|os.O_RDWR|os.O_APPEND|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return fmt.Errorf("open audit log: %w", err)
	}
	info, err := f.Stat()
	if err != nil {
		f.Close()
		return fmt.Errorf("open audit log: %w", err)
	}
	l.file, l.size = f, info.Size()
	last := []byte{'\n'}
	if l.size > 0 {
		if _, err := f.ReadAt(last, l.size-1); err != nil {
			f.Close()
			return fmt.Errorf("open audit log: %w", err)
		}
	}
	if last[0] != '\n' {
		n, err := f.WriteString("\n")
		l.size += int64(n)
		return err
	}
	return nil
}

// Add writes a line and returns when the disk has it, or for an act that only reads, when the kernel has it. Texts that users gave cannot end a line: JSON writes their control characters
// as \u00XX, and long ones are cut.
func (l *Log) Add(line Line) error {
	if line.Time.IsZero() {
		line.Time = time.Now()
	}
	line.Time = line.Time.UTC()
	for _, text := range []*string{&line.Who, &line.From, &line.On, &line.Detail, &line.Error} {
		*text = cut(*text)
	}
	line.Role, line.Act = may.Role(cut(string(line.Role))), may.Act(cut(string(line.Act)))
	text, err := json.Marshal(line)
	if err != nil {
		return fmt.Errorf("write audit log: %w", err)
	}
	text = append(text, '\n')
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.file == nil {
		return fmt.Errorf("write audit log: %w", fs.ErrClosed)
	}
	if l.size > 0 && l.size+int64(len(text)) > l.most {
		if err := l.turn(); err != nil {
			return err
		}
	}
	n, err := l.file.Write(text)
	l.size += int64(n)
	if err == nil && !(reads(line.Act) && line.Result == Done) {
		err = unix.Fdatasync(int(l.file.Fd()))
	}
	if err != nil {
		return fmt.Errorf("write audit log: %w", err)
	}
	return nil
}

// turn puts the full file in the place of the old one, and begins a new one.
func (l *Log) turn() error {
	if err := os.Rename(l.path, l.path+".1"); err != nil {
		return fmt.Errorf("turn audit log: %w", err)
	}
	old := l.file
	if err := l.open(); err != nil {
		l.file = old // go on in the old one: no act without its line
		return errors.Join(err, os.Rename(l.path+".1", l.path))
	}
	return old.Close()
}

// Close closes the log.
func (l *Log) Close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	f := l.file
	l.file = nil
	if f == nil {
		return nil
	}
	return f.Close()
}

// cut returns valid text of at most mostField bytes, without characters that could turn or hide what a terminal shows of the line.
func cut(text string) string {
	if len(text) > mostField {
		end := mostField
		for end > mostField-utf8.UTFMax && !utf8.RuneStart(text[end]) {
			end--
		}
		text = text[:end] + "…"
	}
	return strings.Map(func(c rune) rune {
		switch {
		case c >= 0x80 && c < 0xa0, c == 0x061c, c >= 0x200b && c <= 0x200f, c >= 0x2028 && c <= 0x202e, c >= 0x2060 && c <= 0x2069, c == 0xfeff:
			return utf8.RuneError
		}
		return c
	}, strings.ToValidUTF8(text, string(utf8.RuneError)))
}
