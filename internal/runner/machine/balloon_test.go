package machine

import (
	"encoding/json"
	"net"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"berth/internal/sys/refuse"
	"berth/test/testkit"
)

// pace is how often the guest's memory changes in these tests.
const pace = 700 * time.Millisecond

// emulated is a monitor whose QEMU does with each command what hears does.
func emulated(t *testing.T, hears func(c commandQMP, say func(any))) *monitor {
	t.Helper()
	ours, theirs := net.Pipe()
	q := newQMP(ours)
	go q.read(nil)
	said, over := make(chan any, 100), make(chan struct{})
	say := func(what any) { said <- what }
	go func() {
		out := json.NewEncoder(theirs)
		for {
			select {
			case s := <-said:
				_ = out.Encode(s)
			case <-over:
				return
			}
		}
	}()
	go func() {
		defer close(over)
		for in := json.NewDecoder(theirs); ; {
			var c commandQMP
			if in.Decode(&c) != nil {
				return
			}
			hears(c, say)
		}
	}()
	t.Cleanup(func() { ours.Close(); theirs.Close(); <-q.ended; <-over })
	return &monitor{qmp: q}
}

// emulator answers as QEMU does, for a guest that has so much memory and then the values of gives, one after the other. It is silent about
// the last change if that is a secret.
func emulator(t *testing.T, has int64, secret bool, gives ...int64) *monitor {
	t.Helper()
	var mu sync.Mutex
	var change func(say func(any))
	change = func(say func(any)) {
		mu.Lock()
		defer mu.Unlock()
		if len(gives) == 0 {
			return
		}
		has, gives = gives[0], gives[1:]
		if len(gives) > 0 || !secret {
			say(map[string]any{"event": "BALLOON_CHANGE", "data": map[string]int64{"actual": has}})
		}
		time.AfterFunc(pace, func() { change(say) })
	}
	return emulated(t, func(c commandQMP, say func(any)) {
		result := map[string]int64{}
		if c.Execute == "balloon" {
			time.AfterFunc(pace, func() { change(say) })
		} else {
			mu.Lock()
			result["actual"] = has
			mu.Unlock()
		}
		say(map[string]any{"return": map[string]int64{}, "id": c.ID - 1}) // an answer that nobody waits for any more
		say(map[string]any{"return": result, "id": c.ID})
		say(map[string]any{"return": map[string]int64{}, "id": c.ID}) // once more
	})
}

// TestGuestMemory: a guest is waited for while it comes nearer to what it was asked for, and no longer.
func TestGuestMemory(t *testing.T) {
	for name, c := range map[string]struct {
		asked  int64
		gives  []int64
		secret bool
		has    int64
		after  time.Duration
	}{
		"only asked":         {asked: 0, has: 500},
		"has it":             {asked: 500, has: 500},
		"does it":            {asked: 200, gives: []int64{400, 300, 200}, has: 200, after: 3 * pace},
		"grows":              {asked: 600, gives: []int64{600}, has: 600, after: pace},
		"does nothing":       {asked: 200, has: 500, after: still},
		"stops half way":     {asked: 200, gives: []int64{400}, has: 400, after: pace + still},
		"goes to and fro":    {asked: 200, gives: []int64{400, 450, 400, 450, 400, 450, 400, 450, 400, 450, 400, 450, 400, 450, 400}, has: 400, after: pace + still},
		"goes the wrong way": {asked: 200, gives: []int64{600}, has: 600, after: still},
		"does it in silence": {asked: 200, gives: []int64{200}, secret: true, has: 200, after: still},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m, began := emulator(t, 500, c.secret, c.gives...), time.Now()
				a := m.memory(t.Context(), c.asked)
				if a.Failure != nil || a.Memory != c.has || time.Since(began) != c.after {
					t.Errorf("after %s: %d, %v; want %d after %s", time.Since(began), a.Memory, a.Failure, c.has, c.after)
				}
			})
		})
	}
}

// TestSlowGuest: a guest that comes nearer for ever does not hold up who asked it.
func TestSlowGuest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var gives []int64
		for i := range int64(2 * longestResize / pace) {
			gives = append(gives, 1<<30-i)
		}
		m, began := emulator(t, 1<<30, false, gives...), time.Now()
		if a := m.memory(t.Context(), 1); a.Failure == nil || time.Since(began) != longestResize {
			t.Errorf("after %s: %+v", time.Since(began), a)
		}
	})
}

// TestNewerMemory: who asks for another value ends the wait of who asked before, and does not wait for him.
func TestNewerMemory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, began := emulator(t, 500, false), time.Now()
		first := make(chan *answer, 1)
		go func() { first <- m.memory(t.Context(), 200) }()
		time.Sleep(pace)
		if a := m.memory(t.Context(), 500); a.Failure != nil || a.Memory != 500 || time.Since(began) != pace {
			t.Errorf("after %s: %+v", time.Since(began), a)
		}
		if a := <-first; a.Failure == nil || !strings.Contains(a.Failure.Why, errNewer.Error()) || time.Since(began) != pace {
			t.Errorf("after %s who asked before is told %+v", time.Since(began), a)
		}
	})
}

// TestSilentEmulator: of a QEMU that does not answer nobody asks more than one thing, and each who asks waits for as long as he wants to.
// Once it answers, it is asked again.
func TestSilentEmulator(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var heard []commandQMP
		var tell func(any)
		m := emulated(t, func(c commandQMP, say func(any)) {
			heard, tell = append(heard, c), say
			if len(heard) > 1 {
				say(map[string]any{"return": map[string]int64{"actual": 7}, "id": c.ID})
			}
		})
		began := time.Now()
		var all sync.WaitGroup
		for range 20 {
			all.Go(func() {
				asks, end := within(quitTime)
				defer end()
				if a := m.memory(asks, 0); a.Failure == nil || time.Since(began) != quitTime {
					t.Errorf("after %s: %+v", time.Since(began), a)
				}
			})
		}
		all.Wait()
		if a := m.memory(t.Context(), 300); a.Failure == nil || time.Since(began) != quitTime+answerTime {
			t.Errorf("who waits longer is told after %s: %+v", time.Since(began), a)
		}
		synctest.Wait()
		if len(heard) != 1 {
			t.Errorf("it was asked %d times", len(heard))
		}
		tell(map[string]any{"return": map[string]int64{"actual": 5}, "id": heard[0].ID})
		if a := m.memory(t.Context(), 0); a.Failure != nil || a.Memory != 7 {
			t.Errorf("once it answers: %+v", a)
		}
		if len(heard) != 2 {
			t.Errorf("a command that nobody waits for was sent: %+v", heard)
		}
	})
}

// TestAskerGone: the monitor does not go on for who has gone, but for the guest being asked.
func TestAskerGone(t *testing.T) {
	for name, to := range map[string]int64{"has": 0, "resize": 300} {
		t.Run(name, func(t *testing.T) {
			asked := make(chan commandQMP, 10)
			r, _ := guestLine(t)
			r.m.qmp = emulated(t, func(c commandQMP, say func(any)) {
				asked <- c
				if c.Execute == "balloon" {
					say(map[string]any{"return": map[string]int64{}, "id": c.ID})
				}
			}).qmp
			c, monitor := pair(t)
			served := make(chan struct{})
			go func() { r.serve(monitor); close(served) }()
			testkit.Must(t, c.send(&request{Do: doMemory, Memory: to}, nil))
			if to > 0 {
				if got := <-asked; got.Execute != "balloon" {
					t.Errorf("QEMU is asked for %s", got.Execute)
				}
			}
			<-asked
			c.close()
			<-served
		})
	}
}

// TestOddEmulator: a QEMU that breaks its protocol is not taken for one that has ended.
func TestOddEmulator(t *testing.T) {
	m := emulated(t, func(_ commandQMP, say func(any)) { say(map[string]any{"id": "x"}) })
	if a := m.memory(t.Context(), 0); a.Gone || a.Failure == nil || !strings.Contains(a.Failure.Why, "breaks its protocol") {
		t.Errorf("it is told %+v", a)
	}
}

// TestResizeRefusals: what cannot be is refused before the guest is asked.
func TestResizeRefusals(t *testing.T) {
	for name, s := range map[string]*Create{
		"an older machine": {Node: "m"}, "more than it booted with": {Node: "m", Booted: 256 << 20},
	} {
		if _, err := s.Resize(256<<20, 512<<20); refuse.KindOf(err) != refuse.Cannot {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestResizeOfNone: to undo a change of a machine that has ended is nothing, whatever it left, and at whichever moment it ended.
func TestResizeOfNone(t *testing.T) {
	ended := t.TempDir()
	l, err := listen(ended)
	testkit.Must(t, err)
	l.Close()
	for _, dir := range []string{t.TempDir(), "/no/such", ended} {
		if err := (&Resize{Dir: dir}).Undo(t.Context()); err != nil {
			t.Errorf("%s: %v", filepath.Base(dir), err)
		}
	}
	ending := t.TempDir()
	l, err = listen(ending)
	testkit.Must(t, err)
	defer l.Close()
	go func() {
		for {
			c, err := l.AcceptUnix()
			if err != nil {
				return
			}
			c.Close()
		}
	}()
	if err := (&Resize{Dir: ending}).Undo(t.Context()); err != nil {
		t.Errorf("one that ends meanwhile: %v", err)
	}
	c, monitor := pair(t)
	monitor.Close()
	if err := c.send(&request{Do: doMemory}, nil); err != errGone { //nolint:errorlint // it is that one
		t.Errorf("a request to one that has ended: %v", err)
	}
}

// TestResizeAgain: a guest that does not do it, and a monitor that is frozen, do not keep a change from being taken back.
func TestResizeAgain(t *testing.T) {
	dir := t.TempDir()
	l, err := listen(dir)
	testkit.Must(t, err)
	defer l.Close()
	got := make(chan *request, 1)
	go func() {
		c, err := l.AcceptUnix()
		if err != nil {
			return
		}
		defer c.Close()
		line, _, _ := receive(c)
		var q request
		_ = json.Unmarshal(line, &q)
		got <- &q
		_, _ = c.Write([]byte(`{"failure":{"why":"no answer"}}` + "\n"))
	}()
	if err := (&Resize{Dir: dir, From: 5, To: 3}).Undo(t.Context()); err != nil {
		t.Error(err)
	}
	if q := <-got; q.Do != doMemory || q.Memory != 5 {
		t.Errorf("it is asked for %+v", q)
	}
}
