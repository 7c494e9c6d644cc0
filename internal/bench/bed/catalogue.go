package bed

import (
	"context"
	"os/exec"
	"slices"
	"strconv"
	"time"

	"berth/internal/bench/published"
	"berth/internal/bench/result"
	"berth/internal/sys/refuse"
)

// Definition defines an experiment: data, and the one function that makes what it is measured on.
type Definition struct {
	result.About
	Program   *program                          // that measures; nil: Berth itself does
	Run, Warm time.Duration                     // length of a trial and of its warm-up, where the time allows; else less, but together not below …
	Least     time.Duration                     // … this
	Whole     bool                              // run and warm-up take whole seconds
	Published string                            // the publication's design, where ours differs
	Pilot     int                               // rounds of the pilot
	Pairs     int                               // number of pairs without --pairs; 0: what the pilot asks for, or what fits into the time
	Part      Part                              // for an experiment of berth bench isolation
	tree      []treeRow                         // rows, of experiments on a tree of files that they make in the first folder
	Folder    bool                              // it lays out its data in the first folder, and has no disk rows
	Machines  bool                              // it has an arm machine, if Options ask for one
	Table     bool                              // one table of a length that is known before: no pilot, no steady state, trials in turn throughout
	Page      string                            // title of the page
	OneByOne  bool                              // see result.Study
	After     func(*result.Experiment) []string // notes that follow from all trials
	Batch     *result.Batch                     // how many trials of an arm run in a row, where a trial is known to influence the next
	Disk      []Job                             // rows, of disk experiments
	Disks     diskUse
	Cells     func(o *Options) int                                          // trials in a round, of experiments without disk rows
	Make      func(context.Context, *Bed, *Definition, *Options, Lab) error // makes the bed; its caller closes it, also after an error
}

// diskUse says which of the disks that are given an experiment uses.
type diskUse int

// How the rows of an experiment use the disks.
const (
	firstDisk   diskUse = iota // folders come before devices
	firstFolder                // it takes one
	firstDevice                // it takes one
	EachDisk                   // every row on every disk
	allDisks                   // every row on all disks at the same time; it takes two of them
)

// UsesDisk says whether the experiment measures a disk.
func (d *Definition) UsesDisk() bool {
	return len(d.Disk) > 0 || d.Part != "" || len(d.tree) > 0 || d.Folder
}

// Chosen returns the disks that the experiment uses; it is refused where those that it takes were not given.
func (d *Definition) Chosen(o *Options) ([]Storage, error) {
	fresh := slices.ContainsFunc(d.Disk, func(j Job) bool { return j.Fresh })
	var folders, devices []Storage
	for _, dir := range o.Dirs {
		folders = append(folders, Storage{Dir: dir, Size: o.Size, fresh: fresh})
	}
	for _, dev := range o.Devices {
		devices = append(devices, Storage{Device: dev, Size: o.Size, DestroyData: o.DestroyData})
	}
	all := slices.Concat(folders, devices)
	switch {
	case d.Disks == firstFolder && len(folders) == 0:
		return nil, refuse.Cannotf("give one with --dir", "%s takes a folder", d.Name)
	case d.Disks == firstFolder:
		return folders[:1], nil
	case d.Disks == firstDevice && (len(devices) == 0 || !o.DestroyData):
		return nil, refuse.Cannotf("give one with --device and --destroy-data: what is on it is lost", "%s takes a block device of its own", d.Name)
	case d.Disks == firstDevice:
		return devices[:1], nil
	case d.Disks == allDisks && len(all) < 2:
		return nil, refuse.Cannotf("give a folder on each with --dir, or devices with --device", "%s takes two disks or more", d.Name)
	case d.Disks == firstDisk:
		return all[:1], nil
	}
	return all, nil
}

// Cost returns the shortest time that a round takes.
func (d *Definition) Cost(o *Options) time.Duration {
	if d.Disk == nil {
		return time.Duration(d.Cells(o)) * (d.Least + overhead)
	}
	sum := time.Duration(0)
	for _, j := range d.Disk {
		sum += 3 * (d.Least + overhead + time.Duration(j.Threads)*perThread)
		if d.HasMachine(o) {
			sum += d.Least + machineOverhead + time.Duration(j.Threads)*perMachineThread
		}
	}
	if d.Disks == EachDisk {
		sum *= time.Duration(len(o.Dirs) + len(o.Devices))
	}
	return sum
}

// Weight returns the experiment's weight when the time is shared; 0 where it will not run in any case.
func (d *Definition) Weight(o *Options) float64 {
	if d.Program != nil {
		if _, err := exec.LookPath(d.Program.Name); err != nil {
			return 0
		}
	}
	if _, err := d.Chosen(o); d.Disk != nil && err != nil || d.Cost(o)*time.Duration(o.FewestRounds()) > o.Budget {
		return 0
	}
	return d.Cost(o).Seconds()
}

// perThread is the time to start and end a thread of fio.
const perThread = 600 * time.Microsecond

// overhead is the time of a trial beside its run and warm-up: the start of a command in a node.
const overhead = 120 * time.Millisecond

// The same of a trial in a machine with an emulated CPU, as they were seen with two of the host's CPUs.
const (
	machineOverhead  = time.Second
	perMachineThread = 10 * time.Millisecond
)

// PilotRounds are enough for a spread: two arms beside the reference give six log ratios.
const PilotRounds = 3

const (
	openlab = "SR-IOV with Linux Containers, CERN openlab and Intel, 2015"
	wnodes  = published.WNoDeS
)

// Catalogue returns the experiments of "all", in the order in which they run.
func Catalogue() []result.About {
	var all []result.About
	for _, d := range definitions() {
		all = append(all, d.About)
	}
	return all
}

// definitions returns the experiments of "all".
func definitions() []Definition {
	return slices.Concat(fioSet(), recordSets(), netSet(), cpuSet())
}

// Find returns the definitions of the names that were given, more among them, and those of the catalogue for "all".
func Find(o *Options, more ...Definition) ([]Definition, error) {
	all, names := definitions(), o.Names
	switch {
	case len(names) == 0:
		return nil, refuse.Invalidf("no experiment is named: berth bench list shows them")
	case slices.Equal(names, []string{"all"}):
		return all, nil
	}
	all = slices.Concat(all, tables(o), more)
	var some []Definition
	for _, name := range names {
		i := slices.IndexFunc(all, func(d Definition) bool { return d.Name == name })
		switch {
		case i < 0:
			return nil, refuse.NotFoundf("there is no experiment %q: berth bench list shows them", name)
		case slices.ContainsFunc(some, func(d Definition) bool { return d.Name == name }):
			return nil, refuse.Invalidf("%s is named twice", name)
		}
		some = append(some, all[i])
	}
	return some, nil
}

// The axes of disk experiments.
var (
	byBlock   = result.Axis{Label: "block size", Unit: "B", Log: true}
	byThreads = result.Axis{Label: "threads", Log: true}
	byDepth   = result.Axis{Label: "queue depth", Log: true}
	byPattern = result.Axis{Label: "pattern"}
)

// fioSet are the seven fio experiments of the first system. What the publication leaves open is said in the setting.
func fioSet() []Definition {
	disk := func(letter, title, question, setting string, axis result.Axis, jobs []Job) Definition {
		return Definition{
			About: result.About{
				Name: "fio-" + letter, Title: title, Question: question, Source: openlab + ", fio experiment (" + letter + ")",
				Setting: setting, Axis: axis, Measures: diskMeasures(),
			},
			Program: &fioProgram, Run: time.Second, Warm: 300 * time.Millisecond, Least: 250 * time.Millisecond,
			Pilot: PilotRounds, Machines: true, Disk: jobs, Make: makeDiskBed,
		}
	}
	return []Definition{
		disk("a", "sequential 512 B writes by queue depth", "What do small sequential writes lose in a node, the more of them are in flight?",
			"512 B, one thread, direct I/O; psync at depth 1, libaio above", byDepth,
			jobsBy([]int64{1, 8, 64, 256}, func(v int64) Job {
				return Job{Name: "depth " + strconv.FormatInt(v, 10), Pattern: "write", Block: 512, Depth: int(v)}
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

func jobsBy(values []int64, job func(int64) Job) []Job {
	var jobs []Job
	for _, v := range values {
		j := job(v)
		j.Value = float64(v)
		jobs = append(jobs, j)
	}
	return jobs
}

func byBlockOf(pattern string, threads int) func(int64) Job {
	return func(v int64) Job {
		return Job{Name: strconv.FormatInt(v>>10, 10) + " KiB", Pattern: pattern, Block: v, Threads: threads}
	}
}

func byThreadsOf(pattern string, block int64) func(int64) Job {
	return func(v int64) Job {
		name := strconv.FormatInt(v, 10) + " threads"
		if v == 1 {
			name = "1 thread"
		}
		return Job{Name: name, Pattern: pattern, Block: block, Threads: int(v)}
	}
}

// recordSets are the experiments that both publications made with iozone, here with fio.
func recordSets() []Definition {
	const mib = 1 << 20
	iozone := []Job{
		{Name: "sequential write", Pattern: "write", Block: mib},
		{Name: "sequential read", Pattern: "read", Block: mib},
		{Name: "random read", Pattern: "randread", Block: mib},
		{Name: "random write", Pattern: "randwrite", Block: mib},
		{Name: "mixed", Pattern: "randrw", Block: mib},
	}
	const record = 256 << 10
	file := []Job{
		{Name: "write", Pattern: "write", Block: record, Fresh: true},
		{Name: "rewrite", Pattern: "write", Block: record},
		{Name: "read", Pattern: "read", Block: record, Cold: true},
		{Name: "reread", Pattern: "read", Block: record},
		{Name: "random read", Pattern: "randread", Block: record},
		{Name: "random write", Pattern: "randwrite", Block: record},
	}
	set := func(a result.About, jobs []Job) Definition {
		a.Axis, a.Measures = byPattern, diskMeasures()
		slices.SortStableFunc(a.Measures, func(x, y result.Measure) int { // the publications speak of throughput
			return rank(x.Name == "bytes_per_second") - rank(y.Name == "bytes_per_second")
		})
		a.Measures[0].Compared, a.Measures[1].Compared = true, false
		return Definition{
			About: a, Program: &fioProgram, Run: time.Second, Warm: 300 * time.Millisecond, Least: 250 * time.Millisecond,
			Pilot: PilotRounds, Machines: true, Disk: jobs, Make: makeDiskBed,
		}
	}
	each := set(result.About{
		Name: "iozone-each", Title: "1 MiB records, each disk alone", Question: "What does a node lose on each disk of a storage server?",
		Source: openlab + ", iozone (4 GiB files on XFS, each disk four times)", Setting: "1 MiB, one thread, direct I/O",
	}, iozone)
	each.Disks = EachDisk
	each.Published = "4 GiB a disk, four times each, no intervals: below 1 % difference"
	together := set(result.About{
		Name: "iozone-all", Title: "1 MiB records, all disks at once", Question: "What does a node lose when all disks of a storage server work?",
		Source: openlab + ", iozone (9 disks at once)", Setting: "1 MiB, one thread a disk, all disks at the same time, direct I/O",
	}, iozone)
	together.Disks = allDisks
	together.Published = "9 disks, no intervals: below 1 % difference"
	inFile := set(result.About{
		Name: "wnodes-file", Title: "256 KiB records of a file", Question: "What does a node lose on a file, record by record?",
		Source:  wnodes + ", iozone (file twice the memory)",
		Setting: "256 KiB, one thread, direct I/O; write makes a new file, rewrite overwrites one, read comes after the kernel's caches were dropped",
	}, file)
	inFile.Disks = firstFolder
	onVolume := set(result.About{
		Name: "wnodes-volume", Title: "256 KiB records of a volume", Question: "What does a node lose on a block device of its own, record by record?",
		Source: wnodes + ", iozone",
		Setting: "256 KiB, one thread, direct I/O, no file system; write goes through the volume once from its begin, rewrite for the whole of a trial, " +
			"both over what is there; read comes after the kernel's caches were dropped",
	}, file)
	onVolume.Disks = firstDevice
	return []Definition{each, together, inFile, onVolume}
}

// rank returns 0 for true and 1 for false, so that true sorts first.
func rank(first bool) int {
	if first {
		return 0
	}
	return 1
}

func netSet() []Definition {
	preset := func(a result.About, run, warm time.Duration, published string, streams, rows int, window string) Definition {
		d := netDefinition(a, run, warm, streams, rows, window)
		d.Published, d.Pilot = published, PilotRounds
		return d
	}
	return []Definition{
		preset(result.About{
			Name: "net-openlab", Title: "network, one TCP stream", Question: "What does a node's network cost in throughput, CPU time and latency?",
			Source: openlab + ", iperf3", Setting: "one TCP stream each way; 64 bytes there and back",
		}, 20*time.Second, 3*time.Second, "20 s after 3 s", 1, 3, ""),
		preset(result.About{
			Name: "net-wnodes", Title: "network, five TCP streams", Question: "What does a node's network cost with several streams of a fixed window?",
			Source: wnodes + ", iperf", Setting: "five TCP streams each way, windows of 256 KiB",
		}, 900*time.Second, 3*time.Second, "900 s", 5, 2, "256K"),
	}
}

// startBatch is how starts are measured: runc was seen to take 10.5 ms after Berth and 7.7 after itself, LXC 8.9 and 4.
var startBatch = result.Batch{
	Trials: 9, Dropped: 5, Why: "a runtime starts slower after another one than after itself: what the kernel still takes apart is waited for",
}

func cpuSet() []Definition {
	rate := func(name, title, unit string) []result.Measure {
		return []result.Measure{{Name: name, Title: title, Unit: unit, Compared: true}}
	}
	instances := result.Axis{Label: "instances"}
	return []Definition{
		{
			About: result.About{
				Name: "cpu", Title: "CPU by stress-ng", Question: "What does a node lose in computing, the more of its CPUs are busy?",
				Source: wnodes + ", HEP-SPEC06 with 1 to 12 instances", Setting: "products of matrices, 1 to as many instances as CPUs",
				Axis: instances, Measures: rate("ops_per_second", "work", "1/s"),
			},
			Program: &stressProgram, Run: 2 * time.Second, Least: time.Second, Whole: true, Pilot: PilotRounds,
			Machines: true, Cells: func(o *Options) int { return o.sides() * len(instancesOf()) }, Make: makeCPUBed,
		},
		{
			About: result.About{
				Name: "cpu-db12", Title: "CPU by DB12", Question: "What does a node lose in the benchmark of the grid, the more of its CPUs are busy?",
				Source: wnodes + ", HEP-SPEC06 with 1 to 12 instances", Setting: "DIRAC Benchmark 2012, 1 to as many copies as CPUs",
				Axis: instances, Measures: rate("db12", "sum of all copies", "DB12"),
			},
			Program: &db12Program, Run: 10 * time.Second, Least: 10 * time.Second, Pilot: 0,
			Machines: true, Cells: func(o *Options) int { return o.sides() * len(instancesOf()) }, Make: makeDB12Bed,
		},
		{
			About: result.About{
				Name: "start", Title: "how fast a node starts", Question: "How long does it take to start a command in a node, beside other runtimes?",
				Setting: "busybox's true in a root of its own; berth with user namespace, seccomp and overlay, runc and crun without",
				Axis:    result.Axis{Label: "action"}, Measures: []result.Measure{{Name: "wall_ms", Title: "time", Unit: "ms", LessIsBetter: true, Compared: true}},
			},
			Least: 50 * time.Millisecond, Pilot: PilotRounds, Batch: &startBatch,
			Machines: true, Cells: func(o *Options) int { return 2 * (5*startBatch.Trials + (o.sides()-3)*machineStart) }, Make: makeStartBed,
		},
	}
}
