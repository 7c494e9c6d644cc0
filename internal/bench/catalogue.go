package bench

import (
	"context"
	"os/exec"
	"slices"
	"strconv"
	"time"

	"berth/internal/refuse"
)

// definition is an experiment before it is measured: data, with the one function that makes what it is measured on.
type definition struct {
	About
	program   *program      // that measures; nil: Berth itself does
	run, warm time.Duration // of a trial, where the time allows; else less, but not below …
	least     time.Duration // … this, the warm-up included
	whole     bool          // run and warm-up take whole seconds
	published string        // the publication's design, where ours differs
	pilot     int           // rounds
	batch     *Batch        // trials of an arm in a row: what is known to carry over
	disk      []diskJob     // rows, of disk experiments
	disks     diskUse
	cells     func(o *StudyOptions) int // trials in a round, of experiments without disk rows
	make      func(context.Context, *definition, *StudyOptions, Lab) (*bed, error)
}

// diskUse says which of the disks that are given an experiment uses.
type diskUse int

const (
	firstDisk   diskUse = iota // folders come before devices
	firstFolder                // it takes one
	firstDevice                // it takes one
	eachDisk                   // every row on every disk
	allDisks                   // every row on all disks at the same time; it takes two of them
)

// chosen are the disks that the experiment uses; it is refused where those that it takes were not given.
func (d *definition) chosen(o *StudyOptions) ([]Options, error) {
	fresh := slices.ContainsFunc(d.disk, func(j diskJob) bool { return j.Fresh })
	var folders, devices []Options
	for _, dir := range o.Dirs {
		folders = append(folders, Options{Dir: dir, Size: o.Size, fresh: fresh})
	}
	for _, dev := range o.Devices {
		devices = append(devices, Options{Device: dev, Size: o.Size, DestroyData: true})
	}
	all := slices.Concat(folders, devices)
	switch {
	case d.disks == firstFolder && len(folders) == 0:
		return nil, refuse.Cannotf("give one with --dir", "%s takes a folder", d.Name)
	case d.disks == firstFolder:
		return folders[:1], nil
	case d.disks == firstDevice && len(devices) == 0:
		return nil, refuse.Cannotf("give one with --destroy-data: what is on it is lost", "%s takes a block device of its own", d.Name)
	case d.disks == firstDevice:
		return devices[:1], nil
	case d.disks == allDisks && len(all) < 2:
		return nil, refuse.Cannotf("give a folder on each with --dir, or devices with --destroy-data", "%s takes two disks or more", d.Name)
	case d.disks == firstDisk:
		return all[:1], nil
	}
	return all, nil
}

// cost is what a round takes at the least.
func (d *definition) cost(o *StudyOptions) time.Duration {
	if d.disk == nil {
		return time.Duration(d.cells(o)) * (d.least + overhead)
	}
	sum := time.Duration(0)
	for _, j := range d.disk {
		sum += 3 * (d.least + overhead + time.Duration(j.Threads)*perThread)
	}
	if d.disks == eachDisk {
		sum *= time.Duration(len(o.Dirs) + len(o.Devices))
	}
	return sum
}

// weight is the experiment's claim to a share of the time: none, where it will not run in any case.
func (d *definition) weight(o *StudyOptions) float64 {
	if d.program != nil {
		if _, err := exec.LookPath(d.program.name); err != nil {
			return 0
		}
	}
	if _, err := d.chosen(o); d.disk != nil && err != nil || d.cost(o)*time.Duration(o.fewestRounds()) > o.Budget {
		return 0
	}
	return d.cost(o).Seconds()
}

// perThread is what starting and ending a thread of fio's takes.
const perThread = 600 * time.Microsecond

// overhead is what a trial takes beside its run and warm-up: the start of a command in a node.
const overhead = 120 * time.Millisecond

// pilotRounds are enough for a spread: two arms beside the reference give six log ratios.
const pilotRounds = 3

const (
	openlab = "SR-IOV with Linux Containers, CERN openlab and Intel, 2015"
	wnodes  = "WNoDeS, INFN-CNAF, ISGC 2011"
)

// Catalogue returns what experiments there are, in the order in which they run.
func Catalogue() []About {
	var all []About
	for _, d := range definitions() {
		all = append(all, d.About)
	}
	return all
}

func definitions() []definition {
	return slices.Concat(fioSet(), recordSets(), netSet(), cpuSet())
}

// find returns the definitions of the names, all of them for "all".
func find(names []string) ([]definition, error) {
	all := definitions()
	if slices.Equal(names, []string{"all"}) {
		return all, nil
	}
	var some []definition
	for _, name := range names {
		i := slices.IndexFunc(all, func(d definition) bool { return d.Name == name })
		switch {
		case i < 0:
			return nil, refuse.NotFoundf("there is no experiment %q: berth bench list shows them", name)
		case slices.ContainsFunc(some, func(d definition) bool { return d.Name == name }):
			return nil, refuse.Invalidf("%s is named twice", name)
		}
		some = append(some, all[i])
	}
	return some, nil
}

// The axes of disk experiments.
var (
	byBlock   = Axis{Label: "block size", Unit: "B", Log: true}
	byThreads = Axis{Label: "threads", Log: true}
	byDepth   = Axis{Label: "queue depth", Log: true}
	byPattern = Axis{Label: "pattern"}
)

// fioSet are the seven fio experiments of the first system. What the publication leaves open is said in the setting.
func fioSet() []definition {
	disk := func(letter, title, question, setting string, axis Axis, jobs []diskJob) definition {
		return definition{
			About: About{
				Name: "fio-" + letter, Title: title, Question: question, Source: openlab + ", fio experiment (" + letter + ")",
				Setting: setting, Axis: axis, Measures: diskMeasures(),
			},
			program: &fioProgram, run: time.Second, warm: 300 * time.Millisecond, least: 250 * time.Millisecond,
			pilot: pilotRounds, disk: jobs, make: makeDiskBed,
		}
	}
	return []definition{
		disk("a", "sequential 512 B writes by queue depth", "What do small sequential writes lose in a node, the more of them are in flight?",
			"512 B, one thread, direct I/O; psync at depth 1, libaio above", byDepth,
			jobsBy([]int64{1, 8, 64, 256}, func(v int64) diskJob {
				return diskJob{Name: "depth " + strconv.FormatInt(v, 10), Pattern: "write", Block: 512, Depth: int(v)}
			})),
		disk("b", "sequential writes by block size", "What do sequential writes of one thread lose in a node?",
			"one thread, queue depth 1, direct I/O", byBlock, jobsBy(kib(4, 8, 16, 32, 64), byBlockOf("write", 1))),
		disk("c", "4 KiB random reads by threads", "What do random reads lose in a node, the more threads read?",
			"4 KiB, queue depth 1 a thread, direct I/O", byThreads, jobsBy([]int64{1, 8, 64, 512}, byThreadsOf("randread", 4<<10))),
		disk("d", "random reads by block size", "What do random reads of many threads lose in a node?",
			"512 threads, queue depth 1 each, direct I/O", byBlock, jobsBy(kib(1, 2, 4, 8, 16, 32, 64, 128), byBlockOf("randread", publishedJobs))),
		disk("e", "4 KiB mixed random reads and writes by threads", "What does a mixed load lose in a node, the more threads make it?",
			"4 KiB, half reads and half writes (our choice: not published), queue depth 1 a thread, direct I/O", byThreads,
			jobsBy([]int64{1, 8, 64, 512}, byThreadsOf("randrw", 4<<10))),
		disk("f", "4 KiB random writes by threads", "What do random writes lose in a node, the more threads write?",
			"4 KiB, queue depth 1 a thread, direct I/O", byThreads, jobsBy([]int64{1, 8, 64, 512}, byThreadsOf("randwrite", 4<<10))),
		disk("g", "larger random writes by threads", "What do larger random writes lose in a node, the more threads write?",
			"64 KiB (our choice: not published), queue depth 1 a thread, direct I/O", byThreads,
			jobsBy([]int64{1, 8, 64, 512}, byThreadsOf("randwrite", 64<<10))),
	}
}

func kib(sizes ...int64) []int64 {
	for i := range sizes {
		sizes[i] <<= 10
	}
	return sizes
}

func jobsBy(values []int64, job func(int64) diskJob) []diskJob {
	var jobs []diskJob
	for _, v := range values {
		j := job(v)
		j.Value = float64(v)
		jobs = append(jobs, j)
	}
	return jobs
}

func byBlockOf(pattern string, threads int) func(int64) diskJob {
	return func(v int64) diskJob {
		return diskJob{Name: strconv.FormatInt(v>>10, 10) + " KiB", Pattern: pattern, Block: v, Threads: threads}
	}
}

func byThreadsOf(pattern string, block int64) func(int64) diskJob {
	return func(v int64) diskJob {
		name := strconv.FormatInt(v, 10) + " threads"
		if v == 1 {
			name = "1 thread"
		}
		return diskJob{Name: name, Pattern: pattern, Block: block, Threads: int(v)}
	}
}

// recordSets are the experiments that both publications made with iozone, here with fio.
func recordSets() []definition {
	const mib = 1 << 20
	iozone := []diskJob{
		{Name: "sequential write", Pattern: "write", Block: mib},
		{Name: "sequential read", Pattern: "read", Block: mib},
		{Name: "random read", Pattern: "randread", Block: mib},
		{Name: "random write", Pattern: "randwrite", Block: mib},
		{Name: "mixed", Pattern: "randrw", Block: mib},
	}
	const record = 256 << 10
	file := []diskJob{
		{Name: "write", Pattern: "write", Block: record, Fresh: true},
		{Name: "rewrite", Pattern: "write", Block: record},
		{Name: "read", Pattern: "read", Block: record, Cold: true},
		{Name: "reread", Pattern: "read", Block: record},
		{Name: "random read", Pattern: "randread", Block: record},
		{Name: "random write", Pattern: "randwrite", Block: record},
	}
	set := func(a About, jobs []diskJob) definition {
		a.Axis, a.Measures = byPattern, diskMeasures()
		slices.SortStableFunc(a.Measures, func(x, y Measure) int { // the publications speak of throughput
			return rank(x.Name == "bytes_per_second") - rank(y.Name == "bytes_per_second")
		})
		a.Measures[0].Compared, a.Measures[1].Compared = true, false
		return definition{
			About: a, program: &fioProgram, run: time.Second, warm: 300 * time.Millisecond, least: 250 * time.Millisecond,
			pilot: pilotRounds, disk: jobs, make: makeDiskBed,
		}
	}
	each := set(About{
		Name: "iozone-each", Title: "1 MiB records, each disk alone", Question: "What does a node lose on each disk of a storage server?",
		Source: openlab + ", iozone (4 GiB files on XFS, each disk four times)", Setting: "1 MiB, one thread, direct I/O",
	}, iozone)
	each.disks = eachDisk
	each.published = "4 GiB a disk, four times each, no intervals: below 1 % difference"
	together := set(About{
		Name: "iozone-all", Title: "1 MiB records, all disks at once", Question: "What does a node lose when all disks of a storage server work?",
		Source: openlab + ", iozone (9 disks at once)", Setting: "1 MiB, one thread a disk, all disks at the same time, direct I/O",
	}, iozone)
	together.disks = allDisks
	together.published = "9 disks, no intervals: below 1 % difference"
	inFile := set(About{
		Name: "wnodes-file", Title: "256 KiB records of a file", Question: "What does a node lose on a file, record by record?",
		Source:  wnodes + ", iozone (file twice the memory)",
		Setting: "256 KiB, one thread, direct I/O; write makes a new file, rewrite overwrites one, read comes after the kernel's caches were dropped",
	}, file)
	inFile.disks = firstFolder
	onVolume := set(About{
		Name: "wnodes-volume", Title: "256 KiB records of a volume", Question: "What does a node lose on a block device of its own, record by record?",
		Source: wnodes + ", iozone",
		Setting: "256 KiB, one thread, direct I/O, no file system; write goes through the volume once from its begin, rewrite for the whole of a trial, " +
			"both over what is there; read comes after the kernel's caches were dropped",
	}, file)
	onVolume.disks = firstDevice
	return []definition{each, together, inFile, onVolume}
}

// rank sorts what is true first.
func rank(first bool) int {
	if first {
		return 0
	}
	return 1
}

func netSet() []definition {
	preset := func(a About, run, warm time.Duration, published string, streams, rows int, window string) definition {
		a.Axis, a.Measures = Axis{Label: "direction"}, netMeasures()
		return definition{
			About: a, program: &iperfProgram, run: run, warm: warm, least: 2 * time.Second, whole: true, published: published,
			pilot: pilotRounds, cells: func(o *StudyOptions) int { return rows * (2 + max(len(o.Networks), 2)) },
			make: func(ctx context.Context, _ *definition, o *StudyOptions, lab Lab) (*bed, error) {
				return makeNetBed(ctx, o, lab, streams, window)
			},
		}
	}
	return []definition{
		preset(About{
			Name: "net-openlab", Title: "network, one TCP stream", Question: "What does a node's network cost in throughput, CPU time and latency?",
			Source: openlab + ", iperf3", Setting: "one TCP stream each way; 64 bytes there and back",
		}, 20*time.Second, 3*time.Second, "20 s after 3 s", 1, 3, ""),
		preset(About{
			Name: "net-wnodes", Title: "network, five TCP streams", Question: "What does a node's network cost with several streams of a fixed window?",
			Source: wnodes + ", iperf", Setting: "five TCP streams each way, windows of 256 KiB",
		}, 900*time.Second, 3*time.Second, "900 s", 5, 2, "256K"),
	}
}

// startBatch is how starts are measured: runc was seen to take 10.5 ms after Berth and 7.7 after itself, LXC 8.9 and 4.
var startBatch = Batch{
	Trials: 9, Dropped: 5, Why: "a runtime starts slower after another one than after itself: what the kernel still takes apart is waited for",
}

func cpuSet() []definition {
	rate := func(name, title, unit string) []Measure {
		return []Measure{{Name: name, Title: title, Unit: unit, Compared: true}}
	}
	instances := Axis{Label: "instances"}
	return []definition{
		{
			About: About{
				Name: "cpu", Title: "CPU by stress-ng", Question: "What does a node lose in computing, the more of its CPUs are busy?",
				Source: wnodes + ", HEP-SPEC06 with 1 to 12 instances", Setting: "products of matrices, 1 to as many instances as CPUs",
				Axis: instances, Measures: rate("ops_per_second", "work", "1/s"),
			},
			program: &stressProgram, run: 2 * time.Second, least: time.Second, whole: true, pilot: pilotRounds,
			cells: func(*StudyOptions) int { return 3 * len(instancesOf()) }, make: makeCPUBed,
		},
		{
			About: About{
				Name: "cpu-db12", Title: "CPU by DB12", Question: "What does a node lose in the benchmark of the grid, the more of its CPUs are busy?",
				Source: wnodes + ", HEP-SPEC06 with 1 to 12 instances", Setting: "DIRAC Benchmark 2012, 1 to as many copies as CPUs",
				Axis: instances, Measures: rate("db12", "sum of all copies", "DB12"),
			},
			program: &db12Program, run: 10 * time.Second, least: 10 * time.Second, pilot: 0,
			cells: func(*StudyOptions) int { return 3 * len(instancesOf()) }, make: makeDB12Bed,
		},
		{
			About: About{
				Name: "start", Title: "how fast a node starts", Question: "How long does it take to start a command in a node, beside other runtimes?",
				Setting: "busybox's true in a root of its own; berth with user namespace, seccomp and overlay, runc and crun without",
				Axis:    Axis{Label: "action"}, Measures: []Measure{{Name: "wall_ms", Title: "time", Unit: "ms", LessIsBetter: true, Compared: true}},
			},
			least: 50 * time.Millisecond, pilot: pilotRounds, batch: &startBatch,
			cells: func(*StudyOptions) int { return 2 * 5 * startBatch.Trials }, make: makeStartBed,
		},
	}
}
