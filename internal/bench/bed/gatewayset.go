package bed

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"berth/internal/bench/fio"
	"berth/internal/bench/result"
	"berth/internal/bench/stat"
	"berth/internal/sys/refuse"
	"berth/internal/sys/text"
)

// The sets of berth bench gateway.
const (
	ThroughputSet = "throughput" // sequential writes and reads, and the CPU time that they take
	IOPSSet       = "iops"       // random requests of 4 KiB
	MetadataSet   = "metadata"   // files made, looked at and removed
	StorageSet    = "storage"    // records of 256 KiB on the places that a node can write to
)

const gatewayPrefix = "gateway-"

// SetNames returns the names of the experiments of some sets; of those of gateways if none is given.
func SetNames(sets []string) ([]string, error) {
	if len(sets) == 0 {
		sets = []string{ThroughputSet, IOPSSet, MetadataSet}
	}
	var names []string
	for _, s := range sets {
		if !slices.Contains([]string{ThroughputSet, IOPSSet, MetadataSet, StorageSet}, s) {
			return nil, refuse.Invalidf("there is no set %q: throughput, iops, metadata, storage", s)
		}
		names = append(names, gatewayPrefix+s)
	}
	return names, nil
}

// The arms beside the host.
const (
	bindArm     = "bind"
	nfsArm      = "nfs"
	sshfsArm    = "sshfs"
	directArm   = "sshfs-direct"
	directTuned = "sshfs-direct-sync" // with the options of the publication
)

var gatewayArms = []string{bindArm, nfsArm, sshfsArm, directArm, directTuned}

// gateways returns the gateways that are measured.
func (o *Options) gateways() []string {
	if len(o.Gateways) > 0 {
		return o.Gateways
	}
	return gatewayArms
}

// nodeCounts returns how many nodes work at once, row by row.
func (o *Options) nodeCounts() []int {
	if len(o.Nodes) > 0 {
		return o.Nodes
	}
	return []int{1, 2, 4, 8}
}

// checkGateways refuses what no gateway experiment can measure.
func (o *Options) checkGateways() error {
	for _, n := range o.Nodes {
		if n < 1 || n > 64 {
			return refuse.Invalidf("%d nodes: from 1 to 64", n)
		}
	}
	for _, g := range o.Gateways {
		if !slices.Contains(gatewayArms, g) {
			return refuse.Invalidf("there is no gateway %q to measure: %s", g, strings.Join(gatewayArms, ", "))
		}
	}
	return nil
}

// treeRow is a row of these experiments: what each of count processes does in a folder of its own.
type treeRow struct {
	name  string
	count int
	job   fio.Job    // without files
	op    fio.MetaOp // instead of the job
	cold  bool       // the kernel's caches are dropped before each trial
}

// byNodes makes a row of each kind for each number of nodes.
func byNodes(counts []int, kinds ...treeRow) (rows []treeRow) {
	for _, k := range kinds {
		for _, n := range counts {
			row := k
			row.name, row.count = k.name+", "+text.Count(n, "node"), n
			rows = append(rows, row)
		}
	}
	return rows
}

const gatewaySetting = "each node works in a folder of its own of one tree; the host: as many processes; the file servers of nfs and sshfs run on this machine. "

// gatewaySet returns the experiments of berth bench gateway.
func gatewaySet(o *Options) []Definition {
	set := func(name string, a result.About, rows []treeRow) Definition {
		a.Name, a.Source = gatewayPrefix+name, wnodes
		d := Definition{
			About: a, Program: &fioProgram, Run: 3 * time.Second, Warm: 300 * time.Millisecond, Table: true, Pairs: stat.MinPairs, OneByOne: true, tree: rows,
			Page:  "Berth benchmark: gateways, and places that a node writes to",
			Cells: func(o *Options) int { return len(rows) * (2 + len(o.gateways()) + len(o.Pools)) },
			Make: func(ctx context.Context, b *Bed, _ *Definition, o *Options, lab Lab) error {
				t := &treeBed{Bed: b, o: o, lab: lab, places: map[string][]place{}}
				if name == StorageSet {
					return t.storage(ctx, rows)
				}
				return t.gateways(ctx, rows)
			},
			After: func(e *result.Experiment) []string { return besideNFS(e, o.MarginPct) },
		}
		if o.Quick {
			d.Run, d.Warm = time.Second, 100*time.Millisecond
		}
		d.Least = d.Run + d.Warm + Lead
		return d
	}
	throughput := result.Measure{Name: "bytes_per_second", Title: "throughput", Unit: "B/s", Compared: true}
	counts := o.nodeCounts()
	const record = 256 << 10
	gateways := []Definition{
		set(ThroughputSet, result.About{
			Title: "Sequential throughput by gateway", Question: "What do sequential writes and reads lose by each gateway, and what CPU time do they take?",
			Setting: gatewaySetting + "256 KiB a request through the page cache, once from begin to end of a file, as far as a trial lasts; writes end with fsync, " +
				"reads begin after the kernel's caches were dropped",
			Measures: []result.Measure{
				throughput,
				{Name: "cpu_s_per_gib", Title: "CPU time of this machine", Unit: "s/GiB", LessIsBetter: true, Compared: true},
			},
		}, byNodes(counts,
			treeRow{name: "write", job: fio.Job{Pattern: "write", Block: record, Once: true, Cached: true, Fsync: true}},
			treeRow{name: "read", job: fio.Job{Pattern: "read", Block: record, Once: true, Cached: true}, cold: true})),
		set(IOPSSet, result.About{
			Title: "Random requests by gateway", Question: "How many requests of 4 KiB a second does each gateway lose?",
			Setting: gatewaySetting + "4 KiB at random places, one request at a time a node, past the page cache of the client; caches are dropped before reads, " +
				"writes end with fsync",
			Measures: []result.Measure{
				{Name: "iops", Title: "requests", Unit: "1/s", Compared: true},
				{Name: "lat_p99_us", Title: "latency, 99th percentile", Unit: "us", LessIsBetter: true},
			},
		}, byNodes(counts,
			treeRow{name: "random read", job: fio.Job{Pattern: "randread", Block: 4 << 10}, cold: true},
			treeRow{name: "random write", job: fio.Job{Pattern: "randwrite", Block: 4 << 10, Fsync: true}})),
		set(MetadataSet, result.About{
			Title: "Metadata operations by gateway", Question: "How many files a second are made, looked at and removed through each gateway?",
			Setting:  gatewaySetting + fmt.Sprintf("%d empty files a node, new in each trial; create opens and closes a new one. Operations a second are 1 / their mean time", o.metaFiles()),
			Measures: []result.Measure{{Name: "ops_per_second", Title: "operations", Unit: "1/s", Compared: true}},
		}, byNodes(counts, treeRow{name: "create", op: fio.Create}, treeRow{name: "stat", op: fio.Stat}, treeRow{name: "unlink", op: fio.Unlink})),
		set(StorageSet, result.About{
			Title: "Records of 256 KiB by place", Question: "What does a node lose on each place that it can write to?",
			Setting: "256 KiB, one thread, direct I/O, a file twice the memory of the node; write makes a new file, rewrite overwrites one, both end with fsync; " +
				"read comes after the kernel's caches were dropped",
			Measures: []result.Measure{throughput, {Name: "iops", Title: "records", Unit: "1/s"}, {Name: "lat_p99_us", Title: "latency, 99th percentile", Unit: "us", LessIsBetter: true}},
		}, []treeRow{
			{name: "write", count: 1, job: fio.Job{Pattern: "write", Block: record, New: true, Fsync: true}},
			{name: "rewrite", count: 1, job: fio.Job{Pattern: "write", Block: record, Once: true, Fsync: true}},
			{name: "read", count: 1, job: fio.Job{Pattern: "read", Block: record, Once: true}, cold: true},
			{name: "reread", count: 1, job: fio.Job{Pattern: "read", Block: record, Once: true}},
			{name: "random read", count: 1, job: fio.Job{Pattern: "randread", Block: record}},
			{name: "random write", count: 1, job: fio.Job{Pattern: "randwrite", Block: record, Fsync: true}},
		}),
	}
	for i, published := range []string{
		"sshfs over socat with direct I/O, no read-ahead and synchronous writes beat NFS and came close to the host; sshfs by ssh is bound by encryption. No figures",
		"", "", "iozone, file twice the RAM: a file image, an LVM volume, NFS: LVM best, all poor against the host. No figures",
	} {
		gateways[i].Published = published
	}
	return gateways
}

// metaFiles is how many files a node makes, looks at or removes in a trial.
func (o *Options) metaFiles() int {
	if o.Quick {
		return 500
	}
	return 2000
}

// besideNFS sets sshfs-direct against nfs, from the same blocks: the publication compares these two.
func besideNFS(e *result.Experiment, marginPct float64) (notes []string) {
	m := e.Measures[0]
	for _, r := range e.Rows {
		by, _ := e.ByArm(r.Name, e.Counts)
		for _, arm := range []string{directArm, directTuned} {
			pairs, _ := m.Pairs(by[nfsArm], by[arm])
			if len(pairs.Arm) == 0 {
				continue
			}
			c := pairs.Judge(marginPct, m.ToPct)
			where := map[stat.Verdict]string{
				stat.Better: "ahead of nfs", stat.Worse: "behind nfs", stat.Equivalent: "equivalent to nfs",
			}
			note := fmt.Sprintf("%s, %s: %s; loses %+.1f %% against nfs", r.Name, arm, cmp.Or(where[c.Verdict], "undecided against nfs"), c.PenaltyPct)
			if c.CI95Pct != nil {
				note += fmt.Sprintf(" (95 %%: %+.1f to %+.1f)", c.CI95Pct[0], c.CI95Pct[1])
			}
			notes = append(notes, note)
		}
	}
	return notes
}
