package top

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"berth/internal/host/counters"
	"berth/internal/network/shape"
)

func TestRates(t *testing.T) {
	at := time.Now()
	was := reading{
		at: at,
		Counters: counters.Counters{
			CPU: time.Second, Throttled: 0, Memory: 1, MemoryMax: counters.Unknown, OOMKills: 0, PIDs: 1,
			Pressure: counters.Pressure{
				CPU: counters.Stall{Some: time.Second, Full: counters.Unknown},
				IO:  counters.Stall{Some: counters.Unknown, Full: counters.Unknown}, Memory: counters.Stall{Some: counters.Unknown, Full: counters.Unknown},
			},
			Disks: []counters.DiskCount{{Major: 0, Minor: 1 << 20, ReadBytes: 1000, ReadOps: 1, Waited: counters.Unknown}, {Major: 0, Minor: 1<<20 + 1, WriteBytes: 9000}},
		},
		links: []shape.Count{{Name: "eth0", RXBytes: 100}},
	}
	is := was
	is.at = at.Add(2 * time.Second)
	is.CPU, is.Throttled = 4*time.Second, 100*time.Millisecond
	is.Pressure.CPU.Some = 2 * time.Second
	is.Disks = []counters.DiskCount{
		{Major: 0, Minor: 1 << 20, ReadBytes: 3000, ReadOps: 2, Waited: counters.Unknown},
		{Major: 0, Minor: 1<<20 + 1, WriteBytes: 100, Waited: time.Second}, // unplugged, and another has its number
		{Major: 0, Minor: 1<<20 + 2, WriteOps: 3},
	}
	is.links = []shape.Count{{Name: "eth0", RXBytes: 350, RXPackets: 2}, {Name: "eth1", TXBytes: 1}}
	var u Use
	u.levels(is)
	u.rates(was, is, diskNames{})
	f := func(v float64) *float64 { return &v }
	i := func(v int64) *int64 { return &v }
	want := Use{
		CPU: f(150), Throttled: f(5), Memory: i(1), OOMKills: i(0), PIDs: i(1),
		Pressure: &PressureUse{CPU: &StallUse{Some: f(50)}},
		Disks: []DiskUse{
			{Disk: "0:1048576", ReadBytes: 1000, ReadOps: 0.5},
			{Disk: "0:1048577", WriteBytes: 50, Waited: f(50)},
			{Disk: "0:1048578", WriteOps: 1.5, Waited: f(0)},
		},
		Links: []LinkUse{{Link: "eth0", RXBits: 1000, RXPackets: 1}, {Link: "eth1", TXBits: 4}},
	}
	if diff := cmp.Diff(want, u); diff != "" {
		t.Error(diff)
	}
}

// TestRatesAreNotKnownAtOnce: a first reading tells levels, and rates that are not known are no zeros.
func TestRatesAreNotKnownAtOnce(t *testing.T) {
	var u Use
	r := reading{at: time.Now(), Counters: counters.Counters{Memory: 5, MemoryMax: counters.Unknown, OOMKills: counters.Unknown, PIDs: counters.Unknown}}
	u.levels(r)
	u.rates(r, r, diskNames{}) // no time has passed
	five := int64(5)
	if diff := cmp.Diff(Use{Memory: &five}, u); diff != "" {
		t.Error(diff)
	}
}
