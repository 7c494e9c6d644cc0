package history

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"berth/internal/node/events"
)

// TestOwed walks through lives of nodes and tells after some of the acts only, as killed commands leave it.
func TestOwed(t *testing.T) {
	at := func(s int) time.Time { return time.Unix(int64(s), 0) }
	code := 3
	end := func(from, to int) *lastRun {
		return &lastRun{at(from), events.Event{Time: at(to), State: "exited", Code: &code}}
	}
	oom := func(from, to int) *lastRun {
		e := end(from, to)
		e.Event.OOM = true
		return e
	}
	for name, tc := range map[string]struct {
		lives []life // after each of which it is told
		want  string
	}{
		"made and started": {[]life{{Created: at(1), Runs: true, Started: at(2)}, {Created: at(1), Runs: true, Started: at(2)}}, "created1 started2"},
		"ended":            {[]life{{Created: at(1), Runs: true, Started: at(2)}, {Created: at(1), End: end(2, 3)}, {Created: at(1), End: end(2, 3)}}, "created1 started2 ended3"},
		"out of memory":    {[]life{{Created: at(1), Runs: true, Started: at(2)}, {Created: at(1), End: oom(2, 3)}, {Created: at(1), End: oom(2, 3)}}, "created1 started2 oom3 ended3"},
		"nothing was told": {[]life{{Created: at(1), Runs: true, Started: at(4), End: end(2, 3)}}, "created1 started2 ended3 started4"},
		"restarted in between": {
			[]life{{Created: at(1), Runs: true, Started: at(2)}, {Created: at(1), Runs: true, Started: at(6), End: end(4, 5)}},
			"created1 started2 started4 ended5 started6",
		},
		"paused":          {[]life{{Created: at(1), Runs: true, Started: at(2), Paused: true, PausedAt: at(3)}, {Created: at(1), Runs: true, Started: at(2), PausedAt: at(4)}}, "created1 started2 paused3 unpaused4"},
		"ended paused":    {[]life{{Created: at(1), Runs: true, Started: at(2), Paused: true, PausedAt: at(3)}, {Created: at(1), End: end(2, 5)}, {Created: at(1), Runs: true, Started: at(6), End: end(2, 5)}}, "created1 started2 paused3 ended5 started6"},
		"the host failed": {[]life{{Created: at(1), Runs: true, Started: at(2)}, {Created: at(1)}, {Created: at(1)}}, "created1 started2 ended99"},
		"failed, started": {[]life{{Created: at(1), Runs: true, Started: at(2)}, {Created: at(1), Runs: true, Started: at(3)}}, "created1 started2 ended99 started3"},
		"its restarts fail, for two reasons": {
			[]life{
				{Created: at(1), Runs: true, Started: at(2)},
				{Created: at(1), End: end(2, 3), Refused: Refusal{"a", at(4), 1}},
				{Created: at(1), End: end(2, 3), Refused: Refusal{"a", at(4), 2}},
				{Created: at(1), End: end(2, 3), Refused: Refusal{"b", at(5), 3}},
				{Created: at(1), Runs: true, Started: at(6), End: end(2, 3)},
				{Created: at(1), End: end(6, 7), Refused: Refusal{"b", at(8), 1}},
			},
			"created1 started2 ended3 refused4 refused5 started6 ended7 refused8",
		},
		"the clock went back": {
			[]life{{Created: at(9), Runs: true, Started: at(9)}, {Created: at(9), End: end(9, 4)}, {Created: at(9), Runs: true, Started: at(5), End: end(9, 4)}},
			"created9 started9 ended4 started5",
		},
	} {
		var told toldEvents
		var got []string
		for _, l := range tc.lives {
			var untold []events.Event
			untold, told = owed("n", told, l, at(99))
			for _, e := range untold {
				got = append(got, e.Event+fmt.Sprint(e.Time.Unix()))
			}
			text, err := json.Marshal(told) // as a journal keeps it
			told = toldEvents{}
			if err == nil {
				err = json.Unmarshal(text, &told)
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		if strings.Join(got, " ") != tc.want {
			t.Errorf("%s: %v, want %s", name, got, tc.want)
		}
	}
	old := life{Runs: true, Started: at(2), End: end(0, 1)}
	if untold, _ := owed("n", caughtUp(old), old, at(99)); len(untold) > 0 {
		t.Errorf("of a node of an older berth: %v", untold)
	}
}
