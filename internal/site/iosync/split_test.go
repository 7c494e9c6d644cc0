package iosync

import (
	"context"
	"encoding/json"
	"log/slog"
	"slices"
	"testing"
	"time"

	"berth/internal/site/iosync/allot"
	"berth/internal/site/iosync/share"
	"berth/internal/site/iosync/want"
	"berth/internal/spec/vnode"
)

// TestPart: what a server enforces of a node's entry, told or not.
func TestPart(t *testing.T) {
	t.Parallel()
	wish := func(node string, servers int) Wish {
		return Wish{Node: node, Servers: servers, Want: want.Entry{Read: vnode.IORate{Rate: 1000, IOPS: 400}, Write: vnode.IORate{Rate: 800}}}
	}
	old := wish("old", 4)
	s := &split{}
	s.resume([]*kept{{Held: Held{Wish: old}, Part: want.Entry{Read: vnode.IORate{Rate: 900, IOPS: 100}, Write: vnode.IORate{Rate: 50}}}}, time.Now())
	bounded := wish("bounded", 1)
	bounded.Bounded = true
	for _, w := range []Wish{old, wish("before", 4), wish("only", 1), bounded} {
		s.arrived(w)
	}
	s.order.Parts["told"] = allot.Rates{allot.ReadBytes: 0.5, allot.ReadOps: 1e-9}
	each := wish("each", 4)
	each.Want.PerServer = true
	for _, tt := range []struct {
		wish              Wish
		read, ops, writes int
		why               string
	}{
		{old, 900, 100, 50, "as the agent before"},
		{wish("old", 5), 900, 100, 50, "as the agent before, while a server joins"},
		{wish("before", 4), 1000 * share.Floor / 4, 400 * share.Floor / 4, 800 * share.Floor / 4, "a floor: it was there before this server"},
		{wish("only", 1), 1000, 400, 800, "all: there is no other server"},
		{bounded, 1000, 400, 800, "all: there is no other server that could have a part"},
		{wish("new", 4), 250, 100, 200, "an equal part: it is new in the site"},
		{wish("new", 40), 1, 1, 1, "a floor: the allocator has no pair for it yet, and there are many servers"},
		{wish("told", 40), 500, 1, 20, "as ordered"},
		{wish("told", 4), 500, 1, 200, "as ordered, at least 1; of what no part was ordered, an equal one"},
		{each, 1000, 400, 800, "all: it is for each server"},
	} {
		got := s.part(tt.wish)
		if got.Read.Rate != vnode.Rate(tt.read) || got.Read.IOPS != tt.ops || got.Write.Rate != vnode.Rate(tt.writes) {
			t.Errorf("%s: got %+v, want %d, %d, %d: %s", tt.wish.Node, got, tt.read, tt.ops, tt.writes, tt.why)
		}
	}
	s.order.Floors = true
	if got := s.part(wish("new", 4)); got.Read.Rate != 5 {
		t.Errorf("a node that is not in an order with floors: %+v", got)
	}
	s.order.Floors = false
	s.forget("before")
	if got := s.part(wish("before", 4)); got.Read.Rate != 250 || s.unknown["before"] {
		t.Errorf("a node that was made anew: %+v", got)
	}
}

// TestReport: of a file system with many servers, only nodes that were told a part or that are at work are reported; with few, all are.
func TestReport(t *testing.T) {
	t.Parallel()
	rates := want.Entry{Read: vnode.IORate{Rate: 1000}}
	for servers, want := range map[int][]string{2: {"busy", "failed", "idle", "told"}, 40: {"busy", "failed", "told"}} {
		way := &stubWay{sums: map[string]allot.Rates{}}
		s := &Served{way: way, held: map[string]*kept{}}
		for _, node := range []string{"busy", "failed", "idle", "told"} {
			way.sums[node] = allot.Rates{100}
			s.held[node] = &kept{Held: Held{Wish: Wish{Node: node, Servers: servers, Want: rates}}}
		}
		s.held["failed"].Failed = "no such device"
		s.split.order.Parts = map[string]allot.Rates{"told": {0.5}}
		now := time.Now()
		s.Report("a", now)
		way.sums["busy"] = allot.Rates{4200}
		var got []string
		for _, u := range s.Report("a", now.Add(time.Second)).Nodes {
			got = append(got, u.Node)
		}
		slices.Sort(got)
		if !slices.Equal(got, want) {
			t.Errorf("%d servers: reported are %v, want %v", servers, got, want)
		}
	}
	text, err := json.Marshal(allot.Report{Nodes: []allot.Use{}})
	var r allot.Report
	if err == nil {
		err = json.Unmarshal(text, &r)
	}
	if err != nil || r.Nodes == nil {
		t.Errorf("a report on no nodes looks like one that confirms: %s, %v", text, err)
	}
}

// TestAloneSingle: a single server whose allocator is away does not keep nodes at parts that only save its capacity.
func TestAloneSingle(t *testing.T) {
	t.Parallel()
	w := Wish{Node: "a", Servers: 1, Bounded: true, Want: want.Entry{Read: vnode.IORate{Rate: 1000}}}
	held := &stubWay{}
	s := &Served{way: held, dir: t.TempDir(), log: slog.New(slog.DiscardHandler), held: map[string]*kept{"a": {Held: Held{Wish: w}}}}
	began := time.Now()
	s.split.order, s.split.at = allot.Order{Number: "x.1", Parts: map[string]allot.Rates{"a": {0.02}}}, began
	if err := s.Alone(t.Context(), began.Add(time.Second)); err != nil || held.last != 0 {
		t.Errorf("soon: %v, %d", err, held.last)
	}
	if err := s.Alone(t.Context(), began.Add(allot.Grace)); err != nil || held.last != 1000 {
		t.Errorf("after long: %v, the node may read %d a second", err, held.last)
	}
}

// stubWay notes what it is to hold.
type stubWay struct {
	way
	last      vnode.Rate
	times     int
	unweighed bool // the disk does not share by weight now
	sums      map[string]allot.Rates
}

func (w *stubWay) counted() func(string) (allot.Rates, bool) {
	return func(node string) (allot.Rates, bool) { return w.sums[node], true }
}

func (w *stubWay) hold(_ context.Context, h, _ *kept) error {
	w.last, w.times, h.Unweighed = h.Part.Read.Rate, w.times+1, w.unweighed
	return nil
}
func (w *stubWay) missing(want.Entry) string { return "" }
func (w *stubWay) stands(string) bool        { return true }

// TestUnweighedIsTriedAgain: a weight that the disk did not take is set when the server looks at its nodes again, though nothing is wanted that was
// not wanted before.
func TestUnweighedIsTriedAgain(t *testing.T) {
	t.Parallel()
	w := Wish{Node: "a", Servers: 1, Want: want.Entry{Weight: 300}}
	way := &stubWay{unweighed: true}
	s := &Served{way: way, dir: t.TempDir(), log: slog.New(slog.DiscardHandler), held: map[string]*kept{}}
	for i, times := range []int{1, 2, 3, 3} {
		way.unweighed = i < 2
		if err := s.hold(t.Context(), w); err != nil || way.times != times {
			t.Errorf("look %d: it was set %d times, not %d: %v", i+1, way.times, times, err)
		}
	}
}
