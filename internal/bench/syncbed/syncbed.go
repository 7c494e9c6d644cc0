// Package syncbed measures VNode Sync: it makes a site of file servers on this machine, each with a disk and an agent of its own, and
// nodes that read and write there.
package syncbed

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"berth/internal/bench/bed"
	"berth/internal/bench/result"
	"berth/internal/bench/stat"
	"berth/internal/spec/vnode"
	"berth/internal/sys/refuse"
	"berth/internal/sys/text"
)

// The sets of berth bench sync.
const (
	AggregateSet  = "aggregate"  // the throughput of a node with a rate from several file servers together
	ForegroundSet = "foreground" // how long a node loads and computes while others are given more
	CostSet       = "cost"       // the cost of sync for a node without limits
)

const prefix = "sync-"

const source = "OS-level virtualization for block I/O (VNodes and VNode Sync), PDSW 2015"

// mostServers is how many file servers one machine is to play.
const mostServers = 16

// Names returns the names of the experiments of some sets, of all if none is given: the set aggregate has one for each number of servers.
// It checks what was asked for.
func Names(sets []string, o *bed.Options) (names []string, err error) {
	for _, n := range o.Servers {
		if n < 1 || n > mostServers {
			return nil, refuse.Invalidf("%d servers: from 1 to %d", n, mostServers)
		}
	}
	for _, r := range o.Rates {
		if r < 1e6 || r > 10e9 {
			return nil, refuse.Invalidf("a rate of %s: from 1MB/s to 10GB/s", r)
		}
	}
	if len(sets) == 0 {
		sets = []string{AggregateSet, ForegroundSet, CostSet}
	}
	for _, s := range sets {
		switch s {
		case AggregateSet:
			for _, n := range servers(o) {
				names = append(names, aggregateName(n))
			}
		case ForegroundSet, CostSet:
			names = append(names, prefix+s)
		default:
			return nil, refuse.Invalidf("there is no set %q: aggregate, foreground, cost", s)
		}
	}
	return names, nil
}

func aggregateName(servers int) string { return prefix + AggregateSet + "-" + strconv.Itoa(servers) }

// servers returns how many file servers there are, experiment by experiment.
func servers(o *bed.Options) []int {
	switch {
	case len(o.Servers) > 0:
		return o.Servers
	case o.Quick:
		return []int{1, 2}
	}
	return []int{1, 2, 4}
}

// rates returns what is asked of the file servers.
func rates(o *bed.Options) []vnode.Rate {
	switch {
	case len(o.Rates) > 0:
		return o.Rates
	case o.Quick:
		return []vnode.Rate{40e6}
	}
	return []vnode.Rate{10e6, 20e6, 40e6, 80e6, 160e6}
}

// Sizes of each file that is read or written, if none is given.
const (
	Size      = 256 << 20
	QuickSize = 64 << 20
)

const setting = "the file servers are on this machine: berth gateway serve, which is OpenSSH's sftp-server, each with an agent and with a disk of its own, " +
	"a loop device with direct I/O; clients are nodes with sshfs. "

// Definitions returns the experiments.
func Definitions(o *bed.Options) []bed.Definition {
	throughput := result.Measure{Name: "bytes_per_second", Title: "throughput", Unit: "B/s", Compared: true}
	var all []bed.Definition
	for _, n := range servers(o) {
		rows := aggregateRows(n, rates(o), o.Quick)
		all = append(all, set(o, result.About{
			Name: aggregateName(n), Title: "Aggregate rate over " + text.Count(n, "file server"),
			Question: "What does a node get whose rate holds over all file servers together?",
			Setting: setting + "Requests of 1 MiB, one at a time a client; N-N: a client and a file a server; N-1: as many clients in parts of one file on " +
				"one server; each write is on the disk before the next; +1: beside a node without a limit that reads from the same servers; no limit (in the notes): what can be had",
			Measures: []result.Measure{throughput, {Name: "others_bytes_per_second", Title: "throughput of the other node", Unit: "B/s"}},
		}, len(rows), func(ctx context.Context, s *site) error { return s.aggregate(ctx, n, rows) }))
	}
	fg := foregroundRates(o.Quick)
	all = append(all, set(o, result.About{
		Name: prefix + ForegroundSet, Title: "A reader in the foreground, by what its competitor is given",
		Question: "How long does a node load its data, and then compute, while another one reads with a rate?",
		Setting: setting + fmt.Sprintf("The foreground reads %s that are in no cache, then computes what always takes the same work; the other node reads all the time, "+
			"with the rate of the row; priority: weights 800 and 100 by BFQ", vnode.Bytes(loads(o))),
		Measures: []result.Measure{
			{Name: "load_s", Title: "time to load", Unit: "s", LessIsBetter: true, Compared: true},
			{Name: "compute_s", Title: "time to compute", Unit: "s", LessIsBetter: true, Compared: true},
			{Name: "others_bytes_per_second", Title: "throughput of the other node", Unit: "B/s"},
		},
	}, 3*len(fg), func(ctx context.Context, s *site) error { return s.foreground(ctx, fg) }))
	all = append(all, set(o, result.About{
		Name: prefix + CostSet, Title: "What VNode Sync costs a node without limits",
		Question: "What does a node lose whose server's process is in its group, without a limit, against one in no group?",
		Setting:  setting + "Requests of 1 MiB, one at a time; each write is on the disk before the next",
		Measures: []result.Measure{throughput, {Name: "cpu_s_per_gib", Title: "CPU time of this machine", Unit: "s/GiB", LessIsBetter: true, Compared: true}},
	}, 3*len(costRows), func(ctx context.Context, s *site) error { return s.cost(ctx) }))
	return all
}

// splitWithin is how long the parts of several servers may take to follow a node's load: a warm-up lasts at least that long.
const splitWithin = 3 * time.Second

// set makes the definition of an experiment; cells is how many trials a round has.
func set(o *bed.Options, a result.About, cells int, bedOf func(context.Context, *site) error) bed.Definition {
	a.Source = source
	d := bed.Definition{
		About: a, Program: bed.FIO, Run: 5 * time.Second, Warm: 3 * time.Second, Table: true, Pairs: stat.MinPairs, OneByOne: true, Folder: true,
		Page:  "Berth benchmark: limits on file servers (VNode Sync)",
		Cells: func(*bed.Options) int { return cells },
		Make: func(ctx context.Context, b *bed.Bed, _ *bed.Definition, o *bed.Options, lab bed.Lab) error {
			return bedOf(ctx, &site{Bed: b, o: o, lab: lab})
		},
	}
	if o.Quick {
		d.Run, d.Warm = 800*time.Millisecond, 1200*time.Millisecond
	}
	if strings.HasSuffix(a.Name, CostSet) { // no rate has to be reached
		d.Warm /= 4
	}
	if strings.HasPrefix(a.Name, prefix+AggregateSet) && a.Name != aggregateName(1) {
		d.Warm = max(d.Warm, splitWithin)
	}
	d.After = reachable
	d.Least = d.Run + d.Warm + bed.Lead
	d.Published = published[strings.TrimPrefix(strings.TrimRight(a.Name, "-0123456789"), prefix)]
	return d
}

// reachable says what was had without a limit: nothing was asked for in these rows, so no table has them.
func reachable(e *result.Experiment) (notes []string) {
	for _, r := range e.Rows {
		if r.Asked == nil && e.Arms[0].Name == result.Asked && len(r.Arms) > 0 {
			notes = append(notes, fmt.Sprintf("%s: %.0f MB/s", r.Name, r.Arms[0].Values["bytes_per_second"]/1e6))
		}
	}
	return notes
}

// published is what the publication did and found, by set. It has curves of these, and no table.
var published = map[string]string{
	AggregateSet: "17 hosts, HDFS and Lustre, N files by N clients and N clients on one file, 10 to 160 MB/s asked: the aggregate rates hold, at a negligible cost. " +
		"Figures 23 and 24 are curves, without numbers to quote",
	ForegroundSet: "ParaView, while competitors are given 5 to 100 MB/s: it slows down the more they are given. No figures to quote",
	CostSet:       "negligible overhead. No figures to quote",
}

// row is one row of the set aggregate.
type row struct {
	name   string
	rate   vnode.Rate // of the node on all servers together; 0: no limit
	one    bool       // all clients on one file of one server; else each has a server and a file of its own
	write  bool
	beside bool // a node without a limit reads at the same time
}

// aggregateRows returns the rows of a number of servers. With one server, one file and many are the same.
func aggregateRows(servers int, rates []vnode.Rate, quick bool) (rows []row) {
	for _, one := range []bool{false, true}[:min(servers, 2)] {
		for _, write := range []bool{false, true} {
			name := map[bool]string{false: "read", true: "write"}[write]
			if servers > 1 {
				name += map[bool]string{false: " N-N", true: " N-1"}[one]
			}
			for _, rate := range rates {
				r := row{name: name + " " + rate.String(), rate: rate, one: one, write: write}
				rows = append(rows, r)
				if r.beside = true; !quick || !one && !write {
					r.name += " +1"
					rows = append(rows, r)
				}
			}
			if !quick || !one && !write {
				rows = append(rows, row{name: name + " no limit", one: one, write: write})
			}
		}
	}
	return rows
}

// Rates reads rates as flags give them.
func Rates(texts []string) (all []vnode.Rate, err error) {
	for _, t := range texts {
		r, err := vnode.ParseRate(strings.TrimSpace(t))
		if err != nil {
			return nil, refuse.Invalidf("--rate: %w", err)
		}
		if !slices.Contains(all, r) {
			all = append(all, r)
		}
	}
	return all, nil
}
