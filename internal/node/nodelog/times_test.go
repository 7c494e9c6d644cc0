package nodelog

import (
	"errors"
	"fmt"
	"iter"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"pgregory.net/rapid"
)

// moved is a log without a keeper: what is written to it is moved at once.
type moved struct {
	Log
	node *os.File
	pipe int
}

func newMoved(t *testing.T) *moved {
	t.Helper()
	m := &moved{Log: newLog(t)}
	var err error
	if m.node, err = m.Make(); err != nil {
		t.Fatal(err)
	}
	if m.pipe, err = unix.Open(m.Pipe, unix.O_RDONLY|unix.O_NONBLOCK, 0); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { m.node.Close(); _ = unix.Close(m.pipe) })
	return m
}

// write writes to the log, and returns when the move began and had ended.
func (m *moved) write(t rapid.TB, text string) (from, to time.Time) {
	t.Helper()
	if _, err := m.node.WriteString(text); err != nil {
		t.Fatal(err)
	}
	from = time.Now()
	for {
		n, lost, err := m.take(m.pipe)
		if errors.Is(err, unix.EAGAIN) {
			return from, time.Now()
		}
		if lost != nil || err != nil || n == 0 {
			t.Fatal(n, lost, err)
		}
	}
}

// lines reads the whole log.
func (m *moved) lines(t rapid.TB) (all []Line) {
	t.Helper()
	v, err := m.Open()
	if err != nil {
		t.Fatal(err)
	}
	defer v.Close()
	l := NewLines(v, func(line Line) error {
		line.Text = slices.Clone(line.Text)
		all = append(all, line)
		return nil
	})
	defer l.Close()
	if err := errors.Join(v.Last(l.Sink, -1), l.Flush()); err != nil {
		t.Fatal(err)
	}
	return all
}

// want is a line and the bounds of its time.
type want struct {
	text     string
	from, to time.Time
}

func compare(t rapid.TB, got []Line, all []want) {
	t.Helper()
	if len(got) != len(all) {
		t.Fatalf("%d lines, want %d", len(got), len(all))
	}
	for i, w := range all {
		g := got[i]
		if string(g.Text) != w.text {
			t.Fatalf("line %d: %.40q, want %.40q", i, g.Text, w.text)
		}
		if g.Time.Before(w.from.Add(-resolution)) || g.Time.After(w.to) {
			t.Fatalf("line %d %.20q: time %v, moved between %v and %v", i, w.text, g.Time, w.from, w.to)
		}
	}
}

// TestTimes: whatever is written in whichever pieces, each line has the time of the move of its first byte.
func TestTimes(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		m := newMoved(t)
		defer m.node.Close()
		var all []want
		begun := false
		for _, piece := range rapid.SliceOfN(rapid.StringMatching(`[a-z]{0,3}\n?`), 1, 20).Draw(r, "pieces") {
			if piece == "" {
				continue
			}
			if rapid.Bool().Draw(r, "pause") {
				time.Sleep(2 * resolution)
			}
			from, to := m.write(r, piece)
			if !begun {
				all = append(all, want{from: from, to: to})
			}
			all[len(all)-1].text += piece
			begun = !strings.HasSuffix(piece, "\n")
		}
		compare(r, m.lines(r), all)
	})
}

// TestTimesTurnOver: the times stay right when parts change, wherever a keeper was killed meanwhile.
func TestTimesTurnOver(t *testing.T) {
	for _, tc := range []struct {
		name   string
		killed func(m *moved) error // what it left
	}{
		{"not killed", func(*moved) error { return nil }},
		{"after the old part was renamed", func(m *moved) error { return m.turnOver() }},
		{"times of a part without records", func(m *moved) error {
			f, at, err := m.open()
			if err != nil {
				return err
			}
			defer f.Close()
			m.stamp(f, at)
			return nil
		}},
		{"a torn record", func(m *moved) error {
			f, err := os.OpenFile(m.times(), os.O_WRONLY|os.O_APPEND, 0)
			if err != nil {
				return err
			}
			defer f.Close()
			_, err = f.Write([]byte{0, 0, 1})
			return err
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			m := newMoved(t)
			var all []want
			for i := range 3 {
				head := fmt.Sprintf("part %d\n", i)
				for _, text := range []string{head, strings.Repeat("x", 60_000) + "\n"} {
					from, to := m.write(t, text)
					all = append(all, want{text, from, to})
				}
				if i == 2 {
					break
				}
				if i == 1 {
					if err := tc.killed(m); err != nil {
						t.Fatal(err)
					}
				}
				if i == 0 || tc.name != "after the old part was renamed" {
					if err := m.turnOver(); err != nil {
						t.Fatal(err)
					}
				}
			}
			compare(t, m.lines(t), all[2:])
		})
	}
}

// TestTimesAreBounded: a part with too many moves is full, however small they are.
func TestTimesAreBounded(t *testing.T) {
	m := newMoved(t)
	m.write(t, "first\n")
	f, err := os.OpenFile(m.times(), os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	long := time.Now().Add(-time.Hour)
	for i := range mostMoves { // as many as fit, all of the first bytes
		if _, err := f.WriteAt(record{at: int64(min(i, 5)), time: long}.encode(), headerSize+int64(i)*recordSize); err != nil {
			t.Fatal(err)
		}
	}
	from, to := m.write(t, "second\n")
	if old, err := os.ReadFile(m.Old); err != nil || string(old) != "first\n" {
		t.Errorf("the old part holds %q, %v", old, err)
	}
	compare(t, m.lines(t), []want{{"first\n", long, long}, {"second\n", from, to}})
}

// TestTimesUnknown: what an older keeper moved has no time; what comes after it has.
func TestTimesUnknown(t *testing.T) {
	m := newMoved(t)
	if err := os.WriteFile(m.File, []byte("before\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	from, to := m.write(t, "after\n")
	got := m.lines(t)
	if len(got) != 2 || !got[0].Time.IsZero() {
		t.Fatalf("lines %v", got)
	}
	compare(t, got[1:], []want{{"after\n", from, to}})
}

// TestTimesOfFollower: who reads along gets the times across a change of parts.
func TestTimesOfFollower(t *testing.T) {
	m := newMoved(t)
	m.write(t, "one\n")
	v, err := m.Open()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { v.Close() }()
	var got []Line
	l := NewLines(v, func(line Line) error {
		line.Text = slices.Clone(line.Text)
		got = append(got, line)
		return nil
	})
	defer l.Close()
	var all []want
	for i := range 4 {
		text := fmt.Sprintf("line %d\n", i)
		from, to := m.write(t, text)
		all = append(all, want{text, from, to})
		if i == 1 {
			if err := m.turnOver(); err != nil {
				t.Fatal(err)
			}
		}
		if i != 2 { // late
			if err := v.More(l.Sink); err != nil {
				t.Fatal(err)
			}
		}
	}
	compare(t, got[1:], all)
}

// TestMerge: lines of several logs in the order of their times; those of one log stay in their order.
func TestMerge(t *testing.T) {
	at := func(s int) time.Time { return time.Unix(int64(s), 0) }
	logs := []iter.Seq[Line]{
		slices.Values([]Line{{at(1), []byte("a1")}, {at(4), []byte("a4")}}),
		slices.Values([]Line{}),
		slices.Values([]Line{{time.Time{}, []byte("c?")}, {at(2), []byte("c2")}, {at(1), []byte("c1")}}),
	}
	var got []string
	for i, l := range Merge(logs) {
		got = append(got, fmt.Sprint(i, string(l.Text)))
	}
	if want := "2c? 0a1 2c2 2c1 0a4"; strings.Join(got, " ") != want {
		t.Errorf("%v, want %s", got, want)
	}
}
