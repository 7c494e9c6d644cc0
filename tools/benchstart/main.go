// Command benchstart measures how fast berth starts nodes, beside plain runc, on this machine: make bench-start. With -old it
// measures a berth beside an older one, and nothing else: make bench-start OLD=PATH.
//
// The two are measured in alternating batches, because each starts slower after the other than after itself. The measurement
// is repeated in several runs, and the confidence interval is over runs. benchstart prints a table, writes JSON with -json, and
// exits with 1 when a target is missed.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"berth/internal/bench/result"
	"berth/internal/bench/side"
	"berth/internal/bench/starts"
	"berth/internal/bench/stat"
	"berth/tools/many"
	"berth/tools/promise"
)

type bench struct {
	berth, dir, root, image string
	old, other              string // the older berth; the arm that berth is compared with
	many, runs, rounds      int
	batch                   result.Batch
	seed                    uint64
	order                   *rand.Rand
	trials                  []result.Trial
	lines                   []line
}

func main() {
	b := bench{}
	out := flag.String("json", "", "write every sample to `FILE`")
	flag.StringVar(&b.berth, "berth", "build/berth", "the berth to measure")
	flag.StringVar(&b.old, "old", "", "compare with this older `BERTH`, instead of runc and targets")
	flag.IntVar(&b.runs, "runs", 5, "runs of what is compared: the units of the interval")
	flag.IntVar(&b.rounds, "rounds", 10, "rounds of a run: a batch of each arm in random order")
	flag.IntVar(&b.batch.Trials, "batch", 9, "trials of an arm in a row")
	flag.IntVar(&b.batch.Dropped, "drop", 5, "of these, the first ones that do not count: they come after the other arm")
	flag.Uint64Var(&b.seed, "seed", uint64(rand.Uint32()), "of the order")
	flag.IntVar(&b.many, "many", 1000, "nodes for ls")
	flag.StringVar(&b.dir, "dir", "/dev/shm", "where all is kept, runc's state too: a tmpfs, as /run is on most hosts")
	flag.Parse()
	if err := b.run(*out); err != nil {
		fmt.Fprintln(os.Stderr, "benchstart:", err)
		os.Exit(1)
	}
}

func (b *bench) run(out string) (err error) {
	if b.berth, err = filepath.Abs(b.berth); err != nil {
		return err
	}
	if b.dir, err = os.MkdirTemp(b.dir, "berth-bench-start-"); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(b.dir)) }()
	if err := os.Chmod(b.dir, 0o711); err != nil { // the mapped ids of nodes need to traverse it
		return err
	}
	b.image = filepath.Join(b.dir, "image")
	if err := starts.BusyboxRoot(b.image); err != nil {
		return err
	}
	if b.runs < 1 || b.rounds < 1 || b.batch.Dropped < 0 || b.batch.Trials < b.batch.Dropped+2 {
		return errors.New("want at least one run and round, and two trials of a batch that count")
	}
	started := time.Now().UTC()
	b.order = rand.New(rand.NewPCG(b.seed, 0))
	b.batch.Why = "either starts slower after the other than after itself"
	machine, err := side.Computer()
	if err != nil {
		return err
	}
	b.root, b.other = "root", "runc"
	rows := []func() error{b.version, b.compared, b.hundred, b.list}
	if b.old != "" {
		b.other, rows = "old", []func() error{b.compared}
	}
	fmt.Printf("seed %d\n", b.seed)
	for _, row := range rows {
		if err := row(); err != nil {
			return err
		}
	}
	missed := b.print()
	if out != "" {
		s := b.study(machine)
		s.Started, s.Ended = started, time.Now().UTC()
		if err := promise.Write(out, s.JSON); err != nil {
			return err
		}
	}
	if missed > 0 {
		return fmt.Errorf("%d targets missed", missed)
	}
	return nil
}

// call runs a command and returns how long it took, in milliseconds.
func call(name string, args ...string) (float64, error) {
	cmd := exec.Command(name, args...)
	start := time.Now()
	text, err := cmd.CombinedOutput()
	ms := float64(time.Since(start).Microseconds()) / 1000
	if err != nil {
		return ms, fmt.Errorf("%s %s: %w: %s", filepath.Base(name), strings.Join(args, " "), err, text)
	}
	return ms, nil
}

func (b *bench) at(args ...string) []string {
	return append([]string{"--root", filepath.Join(b.dir, b.root)}, args...)
}

func (b *bench) version() error {
	m, err := b.repeat(50, "berth --version, ms", func() (float64, error) { return call(b.berth, "--version") })
	b.lines = append(b.lines, line{what: "berth --version", berth: m, unit: "ms", target: "under 10 ms", met: m < 10})
	return err
}

// repeat calls one n times and returns the median of what it returns.
func (b *bench) repeat(n int, row string, one func() (float64, error)) (float64, error) {
	var all []float64
	for i := range n {
		ms, err := one()
		if err != nil {
			return 0, err
		}
		all = append(all, ms)
		b.add(row, "berth", 1, i+1, 0, ms)
	}
	return stat.MedianOf(all), nil
}

// add appends a trial. A session is a run, a round a batch of each arm.
func (b *bench) add(row, arm string, run, round, batch int, ms float64) {
	b.trials = append(b.trials, result.Trial{
		Head: result.Head{Seq: len(b.trials) + 1, Row: row, Round: round, Arm: arm, Start: time.Now().UTC()}, Session: run, Batch: batch,
		Values: map[string]float64{"ms": ms},
	})
}

// comparisons are the two rows: berth has a user namespace, seccomp, a network namespace and an overlay; runc has the same root
// without any of these. An older berth does the same work: the bound is the benchmark's usual margin.
func (b *bench) comparisons() []line {
	if b.old != "" {
		return []line{
			{what: "run a command and remove the node / the older berth", unit: "ms", most: 1.05},
			{what: "make, start and remove a node / the older berth", unit: "ms", most: 1.05},
			{what: "change a limit of a node twice / the older berth", unit: "ms", most: 1.05},
		}
	}
	return []line{
		{what: "run a command and remove the node / runc run", unit: "ms", most: 1.5},
		{what: "make, start and remove a node / runc create, start, delete -f", unit: "ms", most: 0.8},
	}
}

// compared measures all comparisons, run by run. Each run has its own folders, and so its own keeper and cgroups.
func (b *bench) compared() error {
	for i := range b.runs {
		b.root = "root-" + strconv.Itoa(i)
		dir := filepath.Join(b.dir, "run-"+strconv.Itoa(i))
		if err := os.Mkdir(dir, 0o711); err != nil {
			return err
		}
		theirs, err := b.theirs(dir)
		if err != nil {
			return fmt.Errorf("prepare %s: %w", b.other, err)
		}
		ours, err := starts.Berth{Self: b.berth, Root: b.at()}.Starter(dir, b.image)
		if err != nil {
			return err
		}
		if err := b.one(i+1, b.comparisons()[0].what, map[string][][]string{"berth": ours.Once, b.other: theirs.Once}); err != nil {
			return err
		}
		if err := b.one(i+1, b.comparisons()[1].what, map[string][][]string{"berth": ours.Lasting, b.other: theirs.Lasting}); err != nil {
			return err
		}
		if b.old != "" {
			if err := b.changes(i+1, dir); err != nil {
				return err
			}
		}
	}
	b.root = "root"
	for _, l := range b.comparisons() {
		b.lines = append(b.lines, b.judge(l))
	}
	return nil
}

// theirs starts the program that berth is compared with: runc, or the older berth with a root, and so a keeper, of its own.
func (b *bench) theirs(dir string) (starts.Starter, error) {
	if b.old == "" {
		return starts.OCIStarter("runc", dir, b.image)
	}
	return starts.Berth{Self: b.old, Root: append(b.at()[:1:1], b.at()[1]+"-old")}.Starter(dir, b.image)
}

// changes measures in one run how long a change of a running node takes.
func (b *bench) changes(run int, dir string) error {
	spec := filepath.Join(dir, "kept.yaml")
	if err := os.WriteFile(spec, []byte("name: kept\nimage: dir:"+b.image+"\ncommand: [/bin/sleep, \"100000\"]\npids: 100\n"), 0o600); err != nil {
		return err
	}
	commands := map[string][][]string{}
	for arm, with := range map[string][]string{"berth": append([]string{b.berth}, b.at()...), b.other: {b.old, b.at()[0], b.at()[1] + "-old"}} {
		of := func(args ...string) []string { return append(slices.Clip(with), args...) }
		if _, err := call(with[0], of("apply", "-f", spec)[1:]...); err != nil {
			return err
		}
		defer func() { _, _ = call(with[0], of("rm", "--force", "kept")[1:]...) }()
		commands[arm] = [][]string{of("set", "kept", "pids=101"), of("set", "kept", "pids=102")}
	}
	return b.one(run, b.comparisons()[2].what, commands)
}

// one measures a comparison in one run; commands are those of each arm.
func (b *bench) one(run int, row string, commands map[string][][]string) error {
	arms := []string{"berth", b.other}
	for _, arm := range arms { // warm up: berth probes the runtime once per boot
		if _, err := starts.Took(context.Background(), commands[arm], starts.Limit); err != nil {
			return err
		}
	}
	for round := range b.rounds {
		for _, i := range b.order.Perm(len(arms)) {
			for k := range b.batch.Trials {
				ms, err := starts.Took(context.Background(), commands[arms[i]], starts.Limit)
				if err != nil {
					return err
				}
				b.add(row, arms[i], run, round+1, k+1, ms)
			}
		}
	}
	return nil
}

// hundred starts 100 nodes, 8 at a time, and measures the memory they take in addition to their own processes.
func (b *bench) hundred() error {
	const n = 100
	keep := exec.Command(b.berth, b.at("run", "--image", "dir:"+b.image, "--name", "first", "--", "/bin/sleep", "1000")...)
	if err := keep.Start(); err != nil { // starts the keeper, whose memory would otherwise be counted for the 100 nodes
		return err
	}
	defer func() { _ = keep.Process.Signal(syscall.SIGTERM); _ = keep.Wait() }()
	time.Sleep(500 * time.Millisecond)
	before := many.Available()
	start := time.Now()
	if err := b.startMany(n); err != nil {
		return err
	}
	took := time.Since(start).Seconds()
	time.Sleep(time.Second)
	pss := b.pssOfNodes()
	each := (float64(before-many.Available()) - pss) / n / 1024
	b.lines = append(b.lines,
		line{what: "100 nodes, 8 at a time", berth: took, unit: "s", target: "under 4 s", met: took < 4},
		line{what: "memory a node, beside its own process", berth: each, unit: "MiB", target: "under 1 MiB", met: each < 1})
	return b.removeMany(n)
}

func (b *bench) list() error {
	if err := b.startMany(b.many); err != nil {
		return err
	}
	what := fmt.Sprintf("berth ls of %d running nodes", b.many)
	m, err := b.repeat(20, what+", ms", func() (float64, error) { return call(b.berth, b.at("ls")...) })
	if err != nil {
		return err
	}
	b.lines = append(b.lines, line{what: what, berth: m, unit: "ms", target: "under 100 ms", met: m < 100})
	return b.removeMany(b.many)
}

func (b *bench) startMany(n int) error {
	return many.Each(n, 8, func(i int) error {
		spec := filepath.Join(b.dir, "spec-"+strconv.Itoa(i))
		text := fmt.Sprintf("name: n-%d\nimage: dir:%s\ncommand: [/bin/sleep, \"100000\"]\n", i, b.image)
		if err := os.WriteFile(spec, []byte(text), 0o600); err != nil {
			return err
		}
		_, err := call(b.berth, b.at("apply", "-f", spec)...)
		return err
	})
}

func (b *bench) removeMany(n int) error {
	return many.Each(n, 8, func(i int) error {
		_, err := call(b.berth, b.at("rm", "--force", "n-"+strconv.Itoa(i))...)
		return err
	})
}

// pssOfNodes returns the sum of Pss over the nodes' first processes, in KiB.
func (b *bench) pssOfNodes() float64 {
	out, err := exec.Command(b.berth, b.at("ls", "--json")...).Output()
	if err != nil {
		return 0
	}
	var nodes []struct{ PID int }
	_ = json.Unmarshal(out, &nodes)
	sum := 0.0
	for _, n := range nodes {
		text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/smaps_rollup", n.PID))
		for line := range strings.Lines(string(text)) {
			if v, ok := strings.CutPrefix(line, "Pss:"); ok {
				kib, _ := strconv.ParseFloat(strings.TrimSuffix(strings.TrimSpace(v), " kB"), 64)
				sum += kib
			}
		}
	}
	return sum
}
