package health

import (
	"context"
	"log/slog"
	"path/filepath"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"berth/internal/node/events"
	"berth/internal/spec/vnode"
	"berth/internal/sys/file"
	"berth/internal/sys/proc"
)

// ward is a node with a check, and what became of it.
type ward struct {
	*Checks
	t     *testing.T
	spec  vnode.Health
	path  string
	first proc.ID

	check  func() Result // what the check finds
	runs   int           // how often it ran
	gone   bool          // its first process has ended
	paused bool
	since  time.Time // paused or unpaused
	ends   int       // how often it was to be ended
}

func newWard(t *testing.T, spec vnode.Health) *ward {
	dir := t.TempDir()
	w := &ward{t: t, spec: spec, path: filepath.Join(dir, "health"), first: proc.ID{PID: 7, Start: 70}, check: func() Result { return Result{} }}
	began := time.Now()
	w.Checks = &Checks{
		Log: slog.New(slog.DiscardHandler), Work: func(f func()) { f() }, Events: events.File{Dir: filepath.Join(dir, "events")},
		Of:     func(string) (*vnode.Health, time.Time, string) { return &w.spec, began, w.path },
		Check:  func(string) Result { w.runs++; return w.check() },
		Paused: func(_ string, since time.Time) bool { return w.paused || w.since.After(since) },
		Locked: func(_ context.Context, _ string, first proc.ID, f func() error) (bool, error) {
			if w.gone || first != w.first {
				return false, nil
			}
			return true, f()
		},
		End: func(context.Context, string, proc.ID) error { w.ends++; return nil },
	}
	return w
}

// keep is the life of a keeper: it watches the node for a time.
func (w *ward) keep(d time.Duration) {
	ctx, cancel := context.WithCancel(w.t.Context())
	w.Watch(ctx, "n", w.first)
	time.Sleep(d)
	synctest.Wait()
	cancel()
	synctest.Wait()
}

// told returns the kinds of all events.
func (w *ward) told() (all []string) {
	ctx, cancel := context.WithCancel(w.t.Context())
	cancel()
	if err := w.Events.Follow(ctx, true, func(e events.Event) error { all = append(all, e.Event); return nil }); err != nil {
		w.t.Fatal(err)
	}
	return all
}

func (w *ward) want(state string, failures, runs int, told ...string) {
	w.t.Helper()
	h := Read(w.path, w.first)
	if h == nil || h.State != state || h.Failures != failures || w.runs != runs {
		w.t.Fatalf("%+v after %d checks, want %s with %d failures after %d", h, w.runs, state, failures, runs)
	}
	if got := w.told(); !slices.Equal(got, told) {
		w.t.Fatalf("told %q, want %q", got, told)
	}
}

func every(seconds int) *vnode.Duration {
	d := vnode.Duration(time.Duration(seconds) * time.Second)
	return &d
}

func TestChecks(t *testing.T) {
	t.Parallel()
	for name, run := range map[string]func(w *ward){
		"well": func(w *ward) {
			w.keep(9 * time.Second)
			w.want(Starting, 0, 0)
			w.keep(time.Hour)
			w.want(Healthy, 0, w.runs, Healthy)
			if Read(w.path, proc.ID{PID: 7, Start: 71}) != nil {
				w.t.Error("the next process of the node has the health of this one")
			}
		},
		"it fails, and is well again": func(w *ward) {
			w.check = func() Result { return Result{Failed: w.runs > 1 && w.runs < 5, Output: "words"} }
			w.keep(25 * time.Second)
			w.want(Healthy, 1, 2, Healthy)
			if h := Read(w.path, w.first); h.Output != "words" {
				w.t.Errorf("%+v", h)
			}
		},
		"unhealthy from the start": func(w *ward) {
			w.check = func() Result { return Result{Failed: true} }
			w.keep(55 * time.Second)
			w.want(Unhealthy, 5, 5, Unhealthy)
			if w.ends != 0 {
				w.t.Error("it was ended, and its spec does not say so")
			}
		},
		"unhealthy ends it": func(w *ward) {
			w.spec.Restart = true
			w.check = func() Result { return Result{Failed: true} }
			w.keep(25 * time.Second)
			w.want(Unhealthy, 2, 2, Unhealthy)
			if w.ends != 1 {
				w.t.Errorf("it was ended %d times", w.ends)
			}
		},
		"a keeper after this one": func(w *ward) {
			w.keep(15 * time.Second)
			w.want(Healthy, 0, 1, Healthy)
			w.check = func() Result { return Result{Failed: true} }
			w.keep(35 * time.Second) // the first within ten seconds
			if h := Read(w.path, w.first); h.State != Unhealthy || !slices.Equal(w.told(), []string{Healthy, Unhealthy}) {
				w.t.Errorf("%+v, told %q", h, w.told())
			}
		},
		"paused": func(w *ward) {
			w.paused = true
			w.check = func() Result { return Result{Failed: true} }
			w.keep(time.Minute)
			w.want(Starting, 0, 0)
		},
		"paused while it is checked": func(w *ward) {
			w.check = func() Result {
				time.Sleep(time.Second)
				w.since = time.Now() // it goes on
				return Result{Failed: true}
			}
			w.keep(35 * time.Second)
			w.want(Starting, 0, 3)
		},
		"it ends": func(w *ward) {
			w.keep(15 * time.Second)
			w.gone = true
			w.check = func() Result { return Result{Failed: true} }
			w.keep(time.Hour)
			w.want(Healthy, 0, 1, Healthy)
		},
		"it ends while it is checked": func(w *ward) {
			w.check = func() Result { w.gone = true; return Result{Failed: true} }
			w.keep(time.Hour)
			w.want(Starting, 0, 1)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				run(newWard(t, vnode.Health{Command: []string{"c"}, Every: every(10), Retries: 2}))
			})
		})
	}
}

// TestKilledWhileTelling checks that an event that a killed keeper told, or was about to tell, is told once.
func TestKilledWhileTelling(t *testing.T) {
	t.Parallel()
	for _, told := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			w := newWard(t, vnode.Health{Command: []string{"c"}, Every: every(10)})
			p := &patient{c: w.Checks, node: "n", first: w.first, path: w.path, log: w.Log}
			p.record = record{Health: Health{State: Healthy, Since: time.Now()}, Process: w.first}
			if !p.note(t.Context(), false) {
				t.Fatal("the node is gone")
			}
			p.Told = "" // as it was when the keeper was killed
			if !told {
				w.Events.Dir += "-none"
			}
			if err := file.WriteJSON(w.path, p.record); err != nil {
				t.Fatal(err)
			}
			w.keep(time.Second)
			if got := w.told(); !slices.Equal(got, []string{Healthy}) {
				t.Errorf("told %q", got)
			}
		})
	}
}
