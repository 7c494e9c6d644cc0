package nodelog

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"berth/test/testkit"
)

func newLog(t *testing.T) Log {
	t.Helper()
	dir := t.TempDir()
	return Log{Pipe: filepath.Join(dir, "pipe"), File: filepath.Join(dir, "log"), Old: filepath.Join(dir, "log.1")}
}

// made makes the FIFO of l, and returns the node's end and a set that empties it.
func made(t *testing.T, l Log) (node *os.File, s *Set) {
	t.Helper()
	node, err := l.Make()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { node.Close() })
	s, err = NewSet(func(_ string, why error) { t.Logf("dropped: %v", why) })
	if err == nil {
		err = s.Open("n", l)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Finish("n", time.Minute) })
	return node, s
}

func text(t *testing.T, l Log) string {
	t.Helper()
	v, err := l.Open()
	if err != nil {
		t.Fatal(err)
	}
	defer v.Close()
	var b bytes.Buffer
	if err := v.Last(Bytes(&b), -1); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

// TestLines reads the last lines of a log in two parts, with the cut between the parts at any place.
func TestLines(t *testing.T) {
	long := strings.Repeat("x", 20000)
	for _, tc := range []struct {
		text string
		n    int
		want string
	}{
		{"a\nb\nc\n", 2, "b\nc\n"},
		{"a\nb\nc", 2, "b\nc"},
		{"a\nb\n", 5, "a\nb\n"},
		{"a\n", 0, ""},
		{"", 3, ""},
		{"\n\n\n", 2, "\n\n"},
		{long + "\nlast\n", 1, "last\n"},
		{"first\n" + long + "\nlast\n", 2, long + "\nlast\n"},
	} {
		for cut := range len(tc.text) + 1 {
			if cut > 8 && cut < len(tc.text)-8 && cut%4999 != 0 {
				continue
			}
			l := newLog(t)
			if err := errors.Join(os.WriteFile(l.Old, []byte(tc.text[:cut]), 0o600), os.WriteFile(l.File, []byte(tc.text[cut:]), 0o600)); err != nil {
				t.Fatal(err)
			}
			v, err := l.Open()
			if err != nil {
				t.Fatal(err)
			}
			var got bytes.Buffer
			if err := v.Last(Bytes(&got), tc.n); err != nil {
				t.Fatal(err)
			}
			v.Close()
			if got.String() != tc.want {
				t.Errorf("last %d lines of %.20q, cut at %d: %.40q, want %.40q", tc.n, tc.text, cut, got.String(), tc.want)
			}
		}
	}
}

// TestCapAndFollow checks that a log never exceeds its cap, that a follower sees each byte once across every change of
// parts, and that the newest lines remain.
func TestCapAndFollow(t *testing.T) {
	l := newLog(t)
	node, err := l.Make()
	if err != nil {
		t.Fatal(err)
	}
	defer node.Close()
	pipe, err := unix.Open(l.Pipe, unix.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(pipe)
	v, err := l.Open()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { v.Close() }()
	var sent, got bytes.Buffer
	for i := 0; sent.Len() < 4*Half; i++ {
		for sent.Len() < (i+1)*50_000 {
			fmt.Fprintf(&sent, "line %d of the node\n", sent.Len())
		}
		if _, err := node.Write(sent.Bytes()[i*50_000 : (i+1)*50_000]); err != nil {
			t.Fatal(err)
		}
		for {
			n, lost, err := l.take(pipe)
			if lost != nil {
				t.Fatal(lost)
			}
			if errors.Is(err, unix.EAGAIN) {
				break
			}
			if err != nil || n == 0 {
				t.Fatal(n, err)
			}
		}
		if size := allocated(t, l); size > 2*Half {
			t.Fatalf("the log takes %d bytes", size)
		}
		if i%3 == 0 { // the follower is sometimes late
			if err := v.More(Bytes(&got)); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := v.More(Bytes(&got)); err != nil {
		t.Fatal(err)
	}
	want := sent.Bytes()[:sent.Len()/50_000*50_000]
	if !bytes.Equal(got.Bytes(), want[:got.Len()]) || got.Len() != len(want) {
		t.Errorf("who read along got %d bytes of %d, or not the same", got.Len(), len(want))
	}
	if kept := text(t, l); !bytes.HasSuffix(want, []byte(kept)) || len(kept) < Half {
		t.Errorf("the log keeps %d bytes that are not the newest", len(kept))
	}
}

// allocated returns how many bytes the log takes on the disk.
func allocated(t *testing.T, l Log) int64 {
	t.Helper()
	var sum int64
	for _, path := range []string{l.File, l.Old} {
		var st unix.Stat_t
		if err := unix.Stat(path, &st); err == nil {
			sum += max(st.Blocks*512, st.Size)
		} else if !errors.Is(err, fs.ErrNotExist) {
			t.Fatal(err)
		}
	}
	return sum
}

// TestKilledBetween checks that after a keeper was killed while it changed parts, the log can be read and goes on.
func TestKilledBetween(t *testing.T) {
	for _, tc := range []struct {
		name  string
		parts map[string]int // which of the log's files exist, and their sizes
	}{
		{"old part removed", map[string]int{"log": Half}},
		{"renamed", map[string]int{"log.1": Half}},
		{"new part made", map[string]int{"log.1": Half, "log": 0}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			l := newLog(t)
			node, s := made(t, l)
			if err := os.Remove(l.File); err != nil {
				t.Fatal(err)
			}
			for name, size := range tc.parts {
				if err := os.WriteFile(filepath.Join(filepath.Dir(l.File), name), bytes.Repeat([]byte("0123456789abcde\n"), size/16), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			fmt.Fprintln(node, "and on")
			s.Flush("n", time.Minute)
			if got := text(t, l); len(got) != Half+7 || !strings.HasSuffix(got, "e\nand on\n") {
				t.Errorf("%d bytes, at the end %q", len(got), got[max(0, len(got)-20):])
			}
		})
	}
}

// TestNextKeeper checks that writers wait while nobody empties the pipe, and that the next keeper gets everything.
func TestNextKeeper(t *testing.T) {
	l := newLog(t)
	node, s := made(t, l)
	fmt.Fprintln(node, "before")
	s.Finish("n", time.Minute)
	wrote := make(chan error, 1)
	go func() {
		_, err := node.WriteString(strings.Repeat("x", 200_000) + "\n")
		wrote <- err
	}()
	for { // the writer waits when the pipe is full
		n, err := unix.IoctlGetInt(int(node.Fd()), unix.TIOCINQ)
		if err != nil {
			t.Fatal(err)
		}
		if n == batch {
			break
		}
	}
	select {
	case err := <-wrote:
		t.Fatalf("the write ended with nobody there: %v", err)
	default:
	}
	if err := s.Open("n", l); err != nil {
		t.Fatal(err)
	}
	if err := <-wrote; err != nil {
		t.Fatal(err)
	}
	s.Flush("n", time.Minute)
	if got := text(t, l); got != "before\n"+strings.Repeat("x", 200_000)+"\n" {
		t.Errorf("%d bytes are in the log", len(got))
	}
}

// TestEnd checks that a pipe without writers is closed after all its content is in the log.
func TestEnd(t *testing.T) {
	l := newLog(t)
	node, s := made(t, l)
	fmt.Fprintln(node, "last words")
	node.Close()
	testkit.Eventually(t, "the pipe is closed", func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.nodes["n"] == nil
	})
	if got := text(t, l); got != "last words\n" {
		t.Errorf("the log has %q", got)
	}
}

// TestTwoPipes: a failed start, or a process that an ended node left behind, may still hold the node's previous pipe.
// Both pipes write to the same log, and neither overwrites the other's lines.
func TestTwoPipes(t *testing.T) {
	l := newLog(t)
	first, s := made(t, l)
	fmt.Fprintln(first, "first")
	if err := os.Remove(l.Pipe); err != nil {
		t.Fatal(err)
	}
	second, err := l.Make()
	if err != nil {
		t.Fatal(err)
	}
	defer second.Close()
	if err := s.Open("n", l); err != nil {
		t.Fatal(err)
	}
	fmt.Fprintln(second, "second")
	s.Flush("n", time.Minute)
	if got := text(t, l); got != "first\nsecond\n" {
		t.Errorf("the log has %q", got)
	}
}

// TestPackets checks that writes of a pipe in packet mode arrive completely.
func TestPackets(t *testing.T) {
	l := newLog(t)
	node, s := made(t, l)
	fd := int(node.Fd())
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_SETFL, unix.O_DIRECT); err != nil { // pipe(2): each write is a packet
		t.Fatal(err)
	}
	var want strings.Builder
	for i := range 100 {
		p := strings.Repeat(string(rune('a'+i%26)), 1+i*40)
		want.WriteString(p)
		if _, err := unix.Write(fd, []byte(p)); err != nil {
			t.Fatal(err)
		}
	}
	s.Flush("n", time.Minute)
	if got := text(t, l); got != want.String() {
		t.Errorf("%d bytes arrived of %d", len(got), want.Len())
	}
}

// TestDropped checks that output that cannot be written does not stop the node, and is reported once.
func TestDropped(t *testing.T) {
	l := newLog(t)
	node, err := l.Make()
	if err != nil {
		t.Fatal(err)
	}
	defer node.Close()
	told := 0
	s, err := NewSet(func(string, error) { told++ })
	if err == nil {
		err = errors.Join(os.Remove(l.File), os.Mkdir(l.File, 0o700), s.Open("n", l))
	}
	if err != nil {
		t.Fatal(err)
	}
	for range 20 {
		if _, err := node.Write(make([]byte, batch)); err != nil {
			t.Fatal(err)
		}
	}
	s.Flush("n", time.Minute)
	if told != 1 {
		t.Errorf("told %d times", told)
	}
	if err := os.Remove(l.File); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(l.File, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	fmt.Fprintln(node, "again")
	s.Finish("n", time.Minute)
	if got := text(t, l); got != "again\n" {
		t.Errorf("the log has %q", got)
	}
}

// TestPace checks that a node gets its rate, over any time.
func TestPace(t *testing.T) {
	p := pace{rate: 1 << 20}
	begin := time.Unix(1_000_000, 0)
	now, sum := begin, 0
	for sum < 10<<20 {
		sum += 50_000
		now = now.Add(p.take(50_000, now))
		if most := burst + now.Sub(begin); time.Duration(sum-50_000)*time.Second/(1<<20) > most {
			t.Fatalf("%d bytes in %v", sum, now.Sub(begin))
		}
	}
	if took := now.Sub(begin); took < 9*time.Second || took > 10*time.Second {
		t.Errorf("10 MiB at 1 MiB/s took %v", took)
	}
	if wait := p.take(50_000, now.Add(time.Hour)); wait != 0 {
		t.Errorf("after an hour without a byte: wait %v", wait)
	}
}

// TestFloodIsPaced checks that a node that writes as fast as it can, in small or large pieces, is slowed down.
func TestFloodIsPaced(t *testing.T) {
	for name, chunk := range map[string]int{"byte by byte": 1, "much at once": 1 << 20} {
		t.Run(name, func(t *testing.T) {
			l := newLog(t)
			node, _ := made(t, l)
			var before, after unix.Rusage
			begin, sum := time.Now(), 0
			if err := unix.Getrusage(unix.RUSAGE_SELF, &before); err != nil {
				t.Fatal(err)
			}
			for p := make([]byte, chunk); time.Since(begin) < 2*time.Second; sum += chunk {
				if _, err := node.Write(p); err != nil {
					t.Fatal(err)
				}
			}
			took := time.Since(begin)
			if err := unix.Getrusage(unix.RUSAGE_SELF, &after); err != nil {
				t.Fatal(err)
			}
			t.Logf("%d bytes in %v, %v of CPU with the writer's own", sum, took,
				time.Duration(after.Utime.Nano()+after.Stime.Nano()-before.Utime.Nano()-before.Stime.Nano()))
			if most := int((took+burst).Seconds()*NodeRate) + chunk + 2*batch; sum > most {
				t.Errorf("%d bytes in %v, at most %d are meant", sum, took, most)
			}
		})
	}
}
