package wire

import (
	"bytes"
	"io"
	"testing"
)

// TestStream sends more than a window through both ends of a stream.
func TestStream(t *testing.T) {
	r, w := io.Pipe()
	back, forth := io.Pipe()
	sender := NewSender(NewWriter(w), 3, Output, nil)
	var got bytes.Buffer
	receiver := NewReceiver(NewWriter(forth), 3, Output, &got, nil)
	go func() { // who reads what is granted
		for {
			f, err := Read(back)
			if err != nil {
				return
			}
			if _, n, err := f.Granted(); err != nil || sender.Grant(n) != nil {
				t.Errorf("grant %d: %v", n, err)
			}
		}
	}()
	want := bytes.Repeat([]byte("0123456789"), Window/4)
	go func() {
		_, err := sender.Write(want)
		w.CloseWithError(err)
	}()
	for {
		f, err := Read(r)
		if err != nil {
			break
		}
		if f.Channel != 3 || f.Kind != Output {
			t.Fatalf("frame %q of channel %d", f.Kind, f.Channel)
		}
		if err := receiver.Take(f.Payload); err != nil {
			t.Fatal(err)
		}
	}
	receiver.End()
	receiver.Flush()
	if !bytes.Equal(got.Bytes(), want) {
		t.Errorf("%d bytes arrived, want %d", got.Len(), len(want))
	}
	forth.Close()
}

// TestBounds: what is more than allowed is an error, not memory.
func TestBounds(t *testing.T) {
	r := NewReceiver(NewWriter(io.Discard), 1, Output, blocked{}, nil)
	var err error
	for taken := 0; err == nil; taken += Piece {
		if taken > 2*Window {
			t.Fatal("a stream that nobody reads took more than its window")
		}
		err = r.Take(make([]byte, Piece))
	}
	s := NewSender(NewWriter(io.Discard), 1, Input, nil)
	if s.Grant(1) == nil {
		t.Error("a grant beyond the window is taken")
	}
	if NewWriter(io.Discard).Send(Run, 1, make([]byte, MostFrame)) == nil {
		t.Error("a frame that is too long is sent")
	}
}

// half is a writer that takes half of what it is given, and then no more.
type half struct{}

func (half) Write(b []byte) (int, error) { return len(b) / 2, io.ErrClosedPipe }

// TestClosed: a sender is told what its reader has read before that went, and that it went; then the stream ends.
func TestClosed(t *testing.T) {
	var said bytes.Buffer
	r := NewReceiver(NewWriter(&said), 1, Input, half{}, nil)
	if err := r.Take(make([]byte, 10)); err != nil {
		t.Fatal(err)
	}
	if err := r.Take(make([]byte, 10)); err != nil {
		t.Fatal(err)
	}
	r.End()
	r.Flush()
	grant, err := Read(&said)
	if err != nil {
		t.Fatal(err)
	}
	closed, err := Read(&said)
	if err != nil {
		t.Fatal(err)
	}
	// The receiver may have had the first ten bytes alone.
	if _, n, err := grant.Granted(); err != nil || n != 5 && n != 10 || closed.Kind != Closed || string(closed.Payload) != string(Input) || said.Len() > 0 {
		t.Errorf("a grant for %d bytes, %v, then %q, and %d bytes more", n, err, closed.Kind, said.Len())
	}
	read := 0
	s := NewSender(NewWriter(io.Discard), 1, Input, func(n int) { read += n })
	if _, err := s.Write(make([]byte, 10)); err != nil {
		t.Fatal(err)
	}
	if err := s.Grant(10); err != nil || read != 10 || !s.Settle() {
		t.Errorf("%d of 10 bytes are read: %v", read, err)
	}
	if _, err := s.Write(make([]byte, 10)); err != nil {
		t.Fatal(err)
	}
	s.Close()
	if err := s.Grant(1); err != nil || read != 10 || s.Settle() {
		t.Errorf("after the end %d bytes are read: %v", read, err)
	}
}

// blocked is a writer that never returns.
type blocked struct{}

func (blocked) Write([]byte) (int, error) { select {} }

// FuzzRead: whatever comes, a frame is at most MostFrame bytes, and what was read can be written again as it was.
func FuzzRead(f *testing.F) {
	f.Add([]byte{'h', 0, 0, 0, 0, 0, 2, '{', '}'})
	f.Add([]byte{'o', 0, 0, 0, 1, 0xff, 0xff})
	f.Add([]byte{'g', 0, 0, 0, 1, 0, 5, 'i', 0, 0, 1, 0})
	f.Fuzz(func(t *testing.T, b []byte) {
		in := bytes.NewReader(b)
		for {
			before := in.Len()
			frame, err := Read(in)
			if err != nil {
				return
			}
			again, err := frame.append(nil)
			if err != nil || len(again) > MostFrame || !bytes.Equal(again, b[len(b)-before:len(b)-in.Len()]) {
				t.Fatalf("%q: %v", frame.Kind, err)
			}
			_, _, _ = frame.Granted()
		}
	})
}

// TestTakesNoMore: what a stream sends without a grant is an error also where its writer drops it, and after End all is dropped.
func TestTakesNoMore(t *testing.T) {
	r := NewReceiver(NewWriter(io.Discard), 1, Output, half{}, nil)
	taken, err := 0, error(nil)
	for ; err == nil && taken <= 2*Window; taken += Piece {
		err = r.Take(make([]byte, Piece))
	}
	if err == nil {
		t.Errorf("a stream whose writer failed took %d bytes", taken)
	}
	var got bytes.Buffer
	r = NewReceiver(NewWriter(io.Discard), 1, Output, &got, nil)
	r.End()
	if err := r.Take([]byte("late")); err != nil {
		t.Error(err)
	}
	r.Flush()
	if got.Len() > 0 {
		t.Errorf("after its end the stream got %q", got.String())
	}
}
