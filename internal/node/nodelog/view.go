package nodelog

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
)

// View reads a log while it grows. It follows when the newest part becomes the old one.
type View struct {
	log      Log
	old, cur *os.File // nil if there is no such file
}

// Open opens the log for reading. The error wraps fs.ErrNotExist if there is none.
func (l Log) Open() (*View, error) {
	for {
		v := &View{log: l}
		var err error
		if v.cur, err = open(l.File); err == nil {
			v.old, err = open(l.Old)
		}
		if err != nil {
			v.Close()
			return nil, fmt.Errorf("open log: %w", err)
		}
		if v.cur == nil && v.old == nil {
			return nil, fmt.Errorf("open log: %w", fs.ErrNotExist)
		}
		if v.current() {
			return v, nil
		}
		v.Close() // the parts were renamed meanwhile
	}
}

func open(path string) (*os.File, error) {
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	return f, err
}

// Close closes the log's files.
func (v *View) Close() {
	for _, f := range []*os.File{v.old, v.cur} {
		if f != nil {
			f.Close()
		}
	}
}

// current reports whether v.cur is still the newest part of the log.
func (v *View) current() bool {
	there, err := os.Lstat(v.log.File)
	if v.cur == nil {
		return errors.Is(err, fs.ErrNotExist)
	}
	mine, statErr := v.cur.Stat()
	return err == nil && statErr == nil && os.SameFile(there, mine)
}

// Sink takes the data of a part of a log, from the file's offset on.
type Sink func(part *os.File) error

// Bytes returns a sink that copies to w.
func Bytes(w io.Writer) Sink {
	return func(part *os.File) error {
		_, err := io.Copy(w, part)
		return err
	}
}

// Last gives the last lines of the log to a sink; all of them if lines is negative.
func (v *View) Last(to Sink, lines int) error {
	p := parts{v.old, v.cur}
	if lines >= 0 {
		if err := p.seekLines(lines); err != nil {
			return fmt.Errorf("read log: %w", err)
		}
	}
	return p.give(to)
}

// More gives a sink the data that was added since the last call. Data that was dropped from the log in between is missing.
func (v *View) More(to Sink) error {
	for {
		now := v.current()
		if err := (parts{v.old, v.cur}).give(to); err != nil || now {
			return err
		}
		next, err := v.log.Open()
		if errors.Is(err, fs.ErrNotExist) {
			return nil // the node was removed
		}
		if err != nil {
			return err
		}
		read := v.cur
		if read == nil {
			read = v.old
		}
		if same(next.old, read) { // read to its end, except for what was added just before the rename
			next.old.Close()
			next.old = read
		}
		for _, f := range []*os.File{v.old, v.cur} {
			if f != nil && f != read {
				f.Close()
			}
		}
		if next.old != read {
			read.Close()
		}
		*v = *next
	}
}

func same(a, b *os.File) bool {
	if a == nil || b == nil {
		return false
	}
	sa, errA := a.Stat()
	sb, errB := b.Stat()
	return errA == nil && errB == nil && os.SameFile(sa, sb)
}

// parts are the files of a log, the oldest first; nil for a file that does not exist.
type parts []*os.File

func (p parts) give(to Sink) error {
	for _, f := range p {
		if f == nil {
			continue
		}
		if err := to(f); err != nil {
			return err
		}
	}
	return nil
}

// seekLines makes give begin at the last n lines.
func (p parts) seekLines(n int) error {
	buf := make([]byte, 8192)
	seen, last := 0, true // last: the byte at hand is the last of the log
	for i, f := range slices.Backward(p) {
		if f == nil {
			continue
		}
		pos, err := f.Seek(0, io.SeekEnd)
		if err != nil {
			return err
		}
		for pos > 0 && seen < n {
			size := min(int64(len(buf)), pos)
			if _, err := f.ReadAt(buf[:size], pos-size); err != nil {
				return err
			}
			for ; size > 0 && seen < n; size, pos, last = size-1, pos-1, false {
				if buf[size-1] != '\n' || last {
					continue
				}
				if seen++; seen == n {
					break
				}
			}
		}
		if _, err := f.Seek(pos, io.SeekStart); err != nil {
			return err
		}
		if seen == n {
			return p[:i].skip()
		}
	}
	return nil
}

// skip makes give omit these parts.
func (p parts) skip() error {
	for _, f := range p {
		if f == nil {
			continue
		}
		if _, err := f.Seek(0, io.SeekEnd); err != nil {
			return err
		}
	}
	return nil
}
