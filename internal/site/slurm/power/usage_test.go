package power

import (
	"encoding/json"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"berth/internal/sys/proof"
)

func TestNote(t *testing.T) {
	bound := []proof.Limit{{Key: "io.data.read.rate", Asked: "50MB/s", ReadBack: "50MB/s"}, {Key: "pids", Asked: "max", ReadBack: "max"}, {Key: "cpu.max", Asked: "1"}, {Key: "machine.memory", Asked: "1GiB", ReadBack: "1073737728"}}
	before := state{
		names:  []string{"st01-01", "st01-02", "st02-01"},
		used:   map[string]amount{"st01-01": {1.5, 0.25, 300, 1, 1000, 2000, 10, 20}, "st02-01": {5, 0, 100, 0, 0, 0, 0, 0}},
		limits: map[string][]proof.Limit{"st01-01": bound, "st01-02": bound, "st02-01": {{Key: "cpu.max", Asked: "2", ReadBack: "2"}}},
	}
	text := before.note().String()
	want := `{"berth":{"nodes":["st01-01","st01-02","st02-01"],"columns":["cpu_s","throttled_s","memory_peak","oom_kills","read","written","reads","writes"],` +
		`"before":[[1.5,0.25,300,1,1000,2000,10,20],null,[5,0,100,0,0,0,0,0]],` +
		`"limits":[{"cpu.max":"2","nodes":"st02-01"},{"io.data.read.rate":"50MB/s","nodes":"st01-[01-02]"}]}}`
	if diff := cmp.Diff(want, text); diff != "" {
		t.Error(diff)
	}
	// The first node was there before; the second is gone; the third was made anew meanwhile, and has used less.
	after := state{names: before.names, used: map[string]amount{"st01-01": {2, 0.25, 400, 1, 1500, 2000, 10, 21}, "st02-01": {0.0000001, 0, 90, 0, 1, 0, 0, 0}}}
	if diff := cmp.Diff(`[[0.5,0,400,0,500,0,0,1],null,[1e-7,0,90,0,1,0,0,0]]`, strings.ReplaceAll(after.since(noteOf(text)), "e-0", "e-")); diff != "" {
		t.Error(diff)
	}
	for _, none := range []string{"", "by another program", `{"berth":{"st01-01":{"cpu_s":1}}}`, `{"berth":{"nodes":["a"]}}`} {
		if got := after.since(noteOf(none)); !strings.HasPrefix(got, `[[2,0.25,400,1,1500,`) || strings.Count(got, "null") != 1 {
			t.Errorf("after %q: %s", none, got)
		}
	}
}

// TestManyNodes: however many nodes a job has, slurmctld and the accounts hold its note and its figures.
func TestManyNodes(t *testing.T) {
	for _, count := range []int{mostRows, 40 * mostRows} {
		s := state{used: map[string]amount{}}
		for i := range count {
			name := "a-host-of-a-long-name-0001-" + strconv.Itoa(i)
			s.names, s.used[name] = append(s.names, name), amount{12345.678901, 12345.678901, 1 << 42, 0, 1 << 45, 1 << 45, 1 << 32, 1 << 32}
		}
		if count > mostRows {
			s.together()
		}
		text := s.note().String()
		n := noteOf(text)
		if len(text) > 1<<16 || len(n.Nodes) == 0 {
			t.Errorf("%d nodes: %d bytes", count, len(text))
		}
		var rows []amount
		if err := json.Unmarshal([]byte(s.since(n)), &rows); err != nil || len(rows) != len(n.Nodes) || rows[0][0] != 0 || rows[0][peak] != 1<<42 {
			t.Errorf("%d nodes: %v %v", count, rows, err)
		}
	}
}
