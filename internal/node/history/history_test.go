package history

import (
	"testing"
	"time"

	"berth/internal/spec/vnode"
	"berth/internal/sys/proc"
)

func TestDue(t *testing.T) {
	failed, fine := &Exit{Code: 1}, &Exit{}
	exited := func(e *Exit, restarts int) *End {
		return &End{State: Exited, Boot: "now", Exit: e, Restarts: restarts}
	}
	for name, tc := range map[string]struct {
		fate   Fate
		policy vnode.Restart
		want   time.Duration
	}{
		"it has not ended":             {Fate{}, vnode.Always, 0},
		"it was stopped":               {Fate{Last: &End{State: Stopped, Boot: "now", Exit: failed}}, vnode.Always, 0},
		"in the boot before":           {Fate{Last: &End{State: Exited, Boot: "before", Exit: failed}}, vnode.Always, 0},
		"never":                        {Fate{Last: exited(failed, 1)}, vnode.Never, 0},
		"no policy":                    {Fate{Last: exited(failed, 1)}, "", 0},
		"on failure, it ended well":    {Fate{Last: exited(fine, 1)}, vnode.OnFailure, 0},
		"on failure, it failed":        {Fate{Last: exited(failed, 1)}, vnode.OnFailure, 100 * time.Millisecond},
		"on failure, nobody saw how":   {Fate{Last: exited(&Exit{Unknown: true}, 1)}, vnode.OnFailure, 100 * time.Millisecond},
		"always, it ended well":        {Fate{Last: exited(fine, 1)}, vnode.Always, 100 * time.Millisecond},
		"on failure, it shut down":     {Fate{Last: exited(&Exit{Code: 130, Signal: "SIGINT"}, 1)}, vnode.OnFailure, 0},
		"never, it was rebooted":       {Fate{Last: exited(&Exit{Code: 129, Signal: "SIGHUP"}, 1)}, vnode.Never, 100 * time.Millisecond},
		"rebooted, and stopped":        {Fate{Last: &End{State: Stopped, Boot: "now", Exit: &Exit{Code: 129, Signal: "SIGHUP"}}}, vnode.Never, 0},
		"not counted yet":              {Fate{Last: exited(fine, 0)}, vnode.Always, 100 * time.Millisecond},
		"the second":                   {Fate{Last: exited(fine, 2)}, vnode.Always, 200 * time.Millisecond},
		"the fifth":                    {Fate{Last: exited(fine, 5)}, vnode.Always, 1600 * time.Millisecond},
		"the thousandth":               {Fate{Last: exited(fine, 1000)}, vnode.Always, time.Minute},
		"a berth run takes care of it": {Fate{Last: exited(failed, 1), Owner: &proc.ID{PID: 1}}, vnode.Always, 0},
	} {
		if got := tc.fate.Due(tc.policy, "now"); got != tc.want {
			t.Errorf("%s: %v, want %v", name, got, tc.want)
		}
	}
}

func TestCounted(t *testing.T) {
	start := time.Now()
	for name, tc := range map[string]struct {
		ran          time.Duration
		before, want int
	}{
		"the first":              {time.Second, 0, 1},
		"in a loop":              {RanWell, 6, 7},
		"after it had run well":  {RanWell + time.Second, 6, 1},
		"the first after a week": {7 * 24 * time.Hour, 0, 1},
	} {
		e := End{Started: start, Ended: start.Add(tc.ran), Restarts: tc.before}
		if got := e.Counted().Restarts; got != tc.want {
			t.Errorf("%s: %d, want %d", name, got, tc.want)
		}
	}
	// Each restart that fails is followed by a later one, up to a minute, however long the node had run; it is no restart.
	e := End{State: Exited, Boot: "now", Started: start, Ended: start.Add(time.Hour)}.Counted()
	var delays []time.Duration
	for i := range 12 {
		delays = append(delays, Fate{Last: &e}.Due(vnode.Always, "now"))
		e = e.NotStarted("no folder", start.Add(time.Duration(i)*time.Minute))
	}
	want := Refusal{Why: "no folder", Since: start, Times: 12}
	if delays[0] != 100*time.Millisecond || delays[5] != 3200*time.Millisecond || delays[11] != time.Minute || e.Refused != want || e.Restarts != 1 {
		t.Errorf("after a start that fails: %v, %+v", delays, e)
	}
	if e = e.NotStarted("no users", start); e.Refused.Times != 13 || e.Refused.Why != "no users" {
		t.Errorf("for another reason: %+v", e)
	}
	stopped, exited := &End{State: Stopped, Restarts: 3}, &End{State: Exited, Restarts: 3}
	for _, tc := range []struct {
		last *End
		want int
	}{{nil, 0}, {stopped, 0}, {exited, 3}} {
		if got := (Fate{Last: tc.last}).Restarts(); got != tc.want {
			t.Errorf("%+v: %d restarts, want %d", tc.last, got, tc.want)
		}
	}
}
