package nodelog

import (
	"bytes"
	"io"
	"iter"
	"os"
	"time"
)

// Line is one line of a log.
type Line struct {
	// Time is when the keeper began to move the line's first byte to the log; zero if that is not known. A line was written
	// before its time, and after the time of the move before: a writer that is held back (a full pipe, the keeper's pace)
	// is later in the log by as much.
	Time time.Time
	Text []byte // with its end of line, unless it is the last of a log that has none; valid until the next line
}

// Lines splits the data of a view into lines with their times.
type Lines struct {
	log   Log
	each  func(Line) error
	times map[uint64]*times // by the inode of the part
	open  Line              // without its end
}

// NewLines returns a splitter that calls each with every line of v. Close it.
func NewLines(v *View, each func(Line) error) *Lines {
	return &Lines{log: v.log, each: each, times: map[uint64]*times{}}
}

// Sink takes a part of the log.
func (l *Lines) Sink(part *os.File) error {
	at, err := part.Seek(0, io.SeekCurrent)
	if err != nil {
		return err
	}
	var t *times
	buf := make([]byte, batch)
	for {
		n, err := part.Read(buf)
		if n > 0 {
			if t == nil {
				t = l.of(part)
			}
			t.more() // after the read: the record of a byte is written before the byte
			if err := l.split(buf[:n], at, t); err != nil {
				return err
			}
			at += int64(n)
		}
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

func (l *Lines) of(part *os.File) *times {
	ino, err := inode(part)
	if err != nil {
		return &times{}
	}
	if t := l.times[ino]; t != nil && t.f != nil {
		return t
	}
	t := l.log.timesOf(part)
	l.times[ino] = t
	return t
}

func (l *Lines) split(text []byte, at int64, t *times) error {
	for len(text) > 0 {
		if len(l.open.Text) == 0 {
			l.open.Time = t.at(at)
		}
		end := bytes.IndexByte(text, '\n') + 1
		if end == 0 {
			l.open.Text = append(l.open.Text, text...)
			return nil
		}
		l.open.Text = append(l.open.Text, text[:end]...)
		if err := l.Flush(); err != nil {
			return err
		}
		text, at = text[end:], at+int64(end)
	}
	return nil
}

// Flush gives on a line that has no end yet.
func (l *Lines) Flush() error {
	if len(l.open.Text) == 0 {
		return nil
	}
	line := l.open
	l.open.Text = l.open.Text[:0]
	return l.each(line)
}

// Close closes the files of times.
func (l *Lines) Close() {
	for _, t := range l.times {
		t.close()
	}
}

// Merge yields the lines of several logs in the order of their times, each with the number of its log.
func Merge(logs []iter.Seq[Line]) iter.Seq2[int, Line] {
	return func(yield func(int, Line) bool) {
		type head struct {
			Line
			next func() (Line, bool)
			ok   bool
		}
		heads := make([]head, len(logs))
		for i, l := range logs {
			next, stop := iter.Pull(l)
			defer stop()
			heads[i].next = next
			heads[i].Line, heads[i].ok = next()
		}
		for {
			first := -1
			for i := range heads {
				if heads[i].ok && (first < 0 || heads[i].Time.Before(heads[first].Time)) {
					first = i
				}
			}
			if first < 0 || !yield(first, heads[first].Line) {
				return
			}
			heads[first].Line, heads[first].ok = heads[first].next()
		}
	}
}
