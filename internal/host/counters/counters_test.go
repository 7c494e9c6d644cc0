package counters

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"berth/internal/host/group"
	"berth/internal/host/group/grouptest"
	"berth/test/testkit"
)

func TestV2StatsAndProcs(t *testing.T) {
	h, _ := grouptest.Drawn(t)
	want := Usage{Memory: new(int64(4096)), OOMKills: new(int64(1)), PIDs: new(int64(7)), CPU: new(1500 * time.Microsecond)}
	if diff := cmp.Diff(want, Stats(h, "berth/wn")); diff != "" {
		t.Error(diff)
	}
}

func TestKernelStats(t *testing.T) {
	h := grouptest.Host(t)
	path := grouptest.New(t, h, group.Kinds(), group.Steps)
	grouptest.Enter(t, h, path, "while :; do :; done")
	testkit.Eventually(t, "CPU time to be counted", func() bool {
		u := Stats(h, path)
		return u.CPU == nil || *u.CPU > 10*time.Millisecond
	})
	u := Stats(h, path)
	if u.PIDs != nil && *u.PIDs != 1 {
		t.Errorf("%d processes", *u.PIDs)
	}
	if u.Memory != nil && *u.Memory <= 0 {
		t.Errorf("%d bytes", *u.Memory)
	}
	if (u.OOMKills != nil) != (u.Memory != nil) {
		t.Errorf("kills for lack of memory: %v", u.OOMKills)
	}
	if gone := Stats(h, path+"-none"); gone != (Usage{}) {
		t.Errorf("a group that is not there: %+v", gone)
	}
}
