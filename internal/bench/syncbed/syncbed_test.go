package syncbed

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"berth/internal/bench/bed"
	"berth/internal/bench/result"
	"berth/internal/spec/vnode"
	"berth/internal/sys/refuse"
)

// TestRows: the published rates, N files and one file, reads and writes, alone and beside another node; each name is there once.
func TestRows(t *testing.T) {
	o := &bed.Options{}
	for n, want := range map[int]int{1: 2 * 11, 2: 4 * 11, 4: 4 * 11} {
		rows := aggregateRows(n, rates(o), false)
		if len(rows) != want {
			t.Errorf("%d servers: %d rows, want %d", n, len(rows), want)
		}
		names := map[string]bool{}
		for _, r := range rows {
			if names[r.name] {
				t.Errorf("%d servers: two rows %q", n, r.name)
			}
			names[r.name] = true
			if r.beside != strings.HasSuffix(r.name, " +1") || r.one != strings.Contains(r.name, "N-1") || r.write != strings.HasPrefix(r.name, "write") ||
				(r.rate == 0) != strings.HasSuffix(r.name, "no limit") {
				t.Errorf("%+v is not what its name says", r)
			}
		}
	}
	var names []string
	for _, r := range aggregateRows(2, []vnode.Rate{40e6}, true) {
		names = append(names, r.name)
	}
	want := []string{"read N-N 40MB/s", "read N-N 40MB/s +1", "read N-N no limit", "write N-N 40MB/s", "read N-1 40MB/s", "write N-1 40MB/s"}
	if diff := cmp.Diff(want, names); diff != "" {
		t.Error(diff)
	}
}

func TestNames(t *testing.T) {
	names, err := Names(nil, &bed.Options{Quick: true})
	want := []string{"sync-aggregate-1", "sync-aggregate-2", "sync-foreground", "sync-cost"}
	if diff := cmp.Diff(want, names); err != nil || diff != "" {
		t.Error(err, diff)
	}
	names, err = Names([]string{AggregateSet}, &bed.Options{Servers: []int{3}})
	if diff := cmp.Diff([]string{"sync-aggregate-3"}, names); err != nil || diff != "" {
		t.Error(err, diff)
	}
	for _, c := range []struct {
		set string
		o   bed.Options
	}{{"disk", bed.Options{}}, {CostSet, bed.Options{Servers: []int{0}}}, {CostSet, bed.Options{Servers: []int{17}}}, {CostSet, bed.Options{Rates: []vnode.Rate{1000}}}} {
		if _, err := Names([]string{c.set}, &c.o); refuse.KindOf(err) != refuse.Invalid {
			t.Errorf("%s %+v: %v", c.set, c.o, err)
		}
	}
	all, err := Rates([]string{"10MB/s", " 20MB/s", "10MB/s"})
	if diff := cmp.Diff([]vnode.Rate{10e6, 20e6}, all); err != nil || diff != "" {
		t.Error(err, diff)
	}
	if _, err := Rates([]string{"10MB"}); refuse.KindOf(err) != refuse.Invalid {
		t.Errorf("a rate without /s: %v", err)
	}
}

// TestDefinitions: what Names names is defined, says what was published, and uses the disk.
func TestDefinitions(t *testing.T) {
	for _, o := range []*bed.Options{{}, {Quick: true}, {Servers: []int{4, 3}}} {
		names, err := Names(nil, o)
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, d := range Definitions(o) {
			got = append(got, d.Name)
			if d.Published == "" || !d.UsesDisk() || d.Cells(o) == 0 || d.Least > d.Run+d.Warm+time.Second {
				t.Errorf("%s: %+v", d.Name, d)
			}
		}
		if diff := cmp.Diff(names, got); diff != "" {
			t.Error(diff)
		}
	}
}

// TestJobs: the clients of a node have a file each, or parts of one that do not overlap.
func TestJobs(t *testing.T) {
	s := &site{o: &bed.Options{Size: 10 << 20}, servers: make([]server, 4)}
	own := (&aggregateRun{row: row{}, site: s}).job(time.Second, 0)
	if diff := cmp.Diff([]string{"/mnt/1/node", "/mnt/2/node", "/mnt/3/node", "/mnt/4/node"}, own.Files); diff != "" || own.Threads > 1 || own.Size != 10<<20 {
		t.Error(diff, own)
	}
	one := (&aggregateRun{row: row{one: true, write: true}, site: s}).job(time.Second, 0)
	if len(one.Files) != 1 || one.Threads != 4 || one.Size != 2<<20 || one.Apart != one.Size || !one.Durable {
		t.Errorf("%+v", one)
	}
}

// TestReachable: what was had without a limit is said, though no table has it.
func TestReachable(t *testing.T) {
	e := &result.Experiment{Arms: []result.Arm{{Name: result.Asked}, {Name: result.Node}}, Rows: []result.Row{
		{Name: "read 10MB/s", Asked: map[string]float64{"bytes_per_second": 10e6}, Arms: []result.ArmMedian{{Arm: result.Node}}},
		{Name: "read no limit", Arms: []result.ArmMedian{{Arm: result.Node, Values: map[string]float64{"bytes_per_second": 321e6}}}},
	}}
	if diff := cmp.Diff([]string{"read no limit: 321 MB/s"}, reachable(e)); diff != "" {
		t.Error(diff)
	}
}
