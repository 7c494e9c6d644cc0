// Command benchstart measures how fast berth starts nodes, beside plain runc, on this machine: make bench-start.
//
// Berth and runc are measured in alternating batches, because each starts slower after the other than after itself. The measurement
// is repeated in several runs, and the confidence interval is over runs. benchstart prints a table, writes JSON with -json, and
// exits with 1 when a target is missed.
package main

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	measure "berth/internal/bench"
)

type bench struct {
	berth, runc, dir, root, image string
	many                          int
	order                         *rand.Rand
	measure.StartReport
}

func main() {
	b := bench{}
	out := flag.String("json", "", "write every sample to `FILE`")
	flag.StringVar(&b.berth, "berth", "build/berth", "the berth to measure")
	flag.IntVar(&b.Runs, "runs", 5, "runs of what is compared: the units of the interval")
	flag.IntVar(&b.Rounds, "rounds", 10, "rounds of a run: a batch of each arm in random order")
	flag.IntVar(&b.Batch.Trials, "batch", 9, "trials of an arm in a row")
	flag.IntVar(&b.Batch.Dropped, "drop", 5, "of these, the first ones that do not count: they come after the other arm")
	flag.Uint64Var(&b.Seed, "seed", uint64(rand.Uint32()), "of the order")
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
	if b.runc, err = exec.LookPath("runc"); err != nil {
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
	if err := measure.BusyboxRoot(b.image); err != nil {
		return err
	}
	if b.Runs < 1 || b.Rounds < 1 || b.Batch.Dropped < 0 || b.Batch.Trials < b.Batch.Dropped+2 {
		return errors.New("want at least one run and round, and two trials of a batch that count")
	}
	b.Format, b.Started, b.order = measure.StartFormat, time.Now().UTC(), rand.New(rand.NewPCG(b.Seed, 0))
	b.Batch.Why = "either starts slower after the other than after itself"
	if b.Machine, err = measure.Computer(); err != nil {
		return err
	}
	b.root = "root"
	for _, row := range []func() error{b.version, b.compared, b.hundred, b.list} {
		if err := row(); err != nil {
			return err
		}
	}
	b.Ended = time.Now().UTC()
	return b.report(out)
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
	var all []float64
	for range 50 {
		ms, err := call(b.berth, "--version")
		if err != nil {
			return err
		}
		all = append(all, ms)
	}
	m := measure.MedianOf(all)
	b.Rows = append(b.Rows, measure.StartRow{What: "berth --version", Berth: m, Unit: "ms", Target: "under 10 ms", Met: m < 10, Samples: all})
	return nil
}

// comparison holds the two functions that are compared. Each runs one trial and returns milliseconds.
type comparison struct {
	what         string
	most         float64
	ours, theirs func() (float64, error)
}

// compared measures all comparisons, run by run. Each run has its own folders, and so its own keeper and cgroups.
func (b *bench) compared() error {
	var rows []measure.StartRow
	for i := range b.Runs {
		b.root = "root-" + strconv.Itoa(i)
		all := []comparison{}
		for _, make := range []func(run string) (comparison, error){b.foreground, b.applyRemove} {
			c, err := make(strconv.Itoa(i))
			if err != nil {
				return err
			}
			all = append(all, c)
		}
		for j, c := range all {
			if i == 0 {
				rows = append(rows, measure.StartRow{What: c.what, Unit: "ms", Target: fmt.Sprintf("at most %.1f times, by the upper end", c.most)})
			}
			run, err := b.one(c)
			if err != nil {
				return err
			}
			rows[j].Runs = append(rows[j].Runs, run)
			if i == b.Runs-1 {
				rows[j] = b.judge(rows[j], c.most)
			}
		}
	}
	b.root = "root"
	b.Rows = append(b.Rows, rows...)
	return nil
}

// one measures one run.
func (b *bench) one(c comparison) (run measure.StartRun, err error) {
	arms := []struct {
		name  string
		trial func() (float64, error)
	}{{"berth", c.ours}, {"runc", c.theirs}}
	for _, a := range arms { // warm up: berth probes the runtime once per boot
		if _, err := a.trial(); err != nil {
			return run, err
		}
	}
	for range b.Rounds {
		for _, i := range b.order.Perm(len(arms)) {
			x := measure.StartBatch{Arm: arms[i].name}
			for range b.Batch.Trials {
				ms, err := arms[i].trial()
				if err != nil {
					return run, err
				}
				x.MS = append(x.MS, ms)
			}
			run.Batches = append(run.Batches, x)
		}
	}
	run.Berth, run.Other = measure.MedianOf(b.Batch.Kept(run.Batches, "berth")), measure.MedianOf(b.Batch.Kept(run.Batches, "runc"))
	return run, nil
}

func (b *bench) judge(r measure.StartRow, most float64) measure.StartRow {
	var ours, theirs []float64
	for _, run := range r.Runs {
		ours, theirs = append(ours, run.Berth), append(theirs, run.Other)
	}
	r.Berth, r.Other = measure.MedianOf(ours), measure.MedianOf(theirs)
	r.Ratio, r.Carry = measure.RunsRatio(r.Runs), b.Batch.Settled(r.Runs, "berth", "runc")
	r.Met = r.Ratio.CI95 != nil && r.Ratio.CI95[1] <= most
	return r
}

// foreground compares berth run (user namespace, seccomp, network namespace, overlay) with runc run of the same root
// without any of these.
func (b *bench) foreground(run string) (comparison, error) {
	bundle, err := b.bundle("plain-"+run, "/bin/true")
	if err != nil {
		return comparison{}, err
	}
	ours := func() (float64, error) {
		return call(b.berth, b.at("run", "--image", "dir:"+b.image, "--", "/bin/true")...)
	}
	plain := func() (float64, error) {
		return call(b.runc, "--root", filepath.Join(b.dir, "runc-"+run), "run", "--bundle", bundle, "plain-"+strconv.Itoa(os.Getpid()))
	}
	return comparison{"run a command and remove the node / runc run", 1.5, ours, plain}, nil
}

// applyRemove compares making and removing a node that lasts.
func (b *bench) applyRemove(run string) (comparison, error) {
	bundle, err := b.bundle("lasting-"+run, "/bin/sleep", "1000")
	if err != nil {
		return comparison{}, err
	}
	spec := filepath.Join(b.dir, "node-"+run+".yaml")
	text := "name: n\nimage: dir:" + b.image + "\ncommand: [/bin/sleep, \"1000\"]\n"
	if err := os.WriteFile(spec, []byte(text), 0o600); err != nil {
		return comparison{}, err
	}
	ours := func() (float64, error) {
		up, err := call(b.berth, b.at("apply", "-f", spec)...)
		if err != nil {
			return 0, err
		}
		down, err := call(b.berth, b.at("rm", "--force", "n")...)
		return up + down, err
	}
	id := "lasting-" + strconv.Itoa(os.Getpid())
	theirs := func() (float64, error) {
		sum := 0.0
		for _, args := range [][]string{{"create", "--bundle", bundle, id}, {"start", id}, {"delete", "--force", id}} {
			// no pipes: the container would hold create's output open
			cmd := exec.Command(b.runc, append([]string{"--root", filepath.Join(b.dir, "runc-"+run)}, args...)...)
			start := time.Now()
			if err := cmd.Run(); err != nil {
				return 0, fmt.Errorf("runc %s: %w", args[0], err)
			}
			sum += float64(time.Since(start).Microseconds()) / 1000
		}
		return sum, nil
	}
	return comparison{"make, start and remove a node / runc create, start, delete -f", 0.8, ours, theirs}, nil
}

// bundle makes a plain bundle as runc spec makes it: no user namespace, no network, no terminal.
func (b *bench) bundle(name string, args ...string) (string, error) {
	return measure.RuntimeBundle(b.runc, filepath.Join(b.dir, name), b.image, args...)
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
	before := available()
	start := time.Now()
	if err := b.startMany(n); err != nil {
		return err
	}
	took := time.Since(start).Seconds()
	time.Sleep(time.Second)
	pss := b.pssOfNodes()
	each := (float64(before-available()) - pss) / n / 1024
	b.Rows = append(b.Rows,
		measure.StartRow{What: "100 nodes, 8 at a time", Berth: took, Unit: "s", Target: "under 4 s", Met: took < 4},
		measure.StartRow{What: "memory a node, beside its own process", Berth: each, Unit: "MiB", Target: "under 1 MiB", Met: each < 1})
	return b.removeMany(n)
}

func (b *bench) list() error {
	if err := b.startMany(b.many); err != nil {
		return err
	}
	var all []float64
	for range 20 {
		ms, err := call(b.berth, b.at("ls")...)
		if err != nil {
			return err
		}
		all = append(all, ms)
	}
	m := measure.MedianOf(all)
	b.Rows = append(b.Rows, measure.StartRow{What: fmt.Sprintf("berth ls of %d running nodes", b.many), Berth: m, Unit: "ms", Target: "under 100 ms", Met: m < 100, Samples: all})
	return b.removeMany(b.many)
}

func (b *bench) startMany(n int) error {
	return eight(n, func(i int) error {
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
	return eight(n, func(i int) error {
		_, err := call(b.berth, b.at("rm", "--force", "n-"+strconv.Itoa(i))...)
		return err
	})
}

// eight calls f with 0 … n-1, eight calls at a time.
func eight(n int, f func(int) error) error {
	next := make(chan int)
	errs := make([]error, n)
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for i := range next {
				errs[i] = f(i)
			}
		})
	}
	for i := range n {
		next <- i
	}
	close(next)
	wg.Wait()
	return errors.Join(errs...)
}

// available returns MemAvailable in KiB.
func available() int64 {
	runtime.GC()
	text, _ := os.ReadFile("/proc/meminfo")
	for line := range strings.Lines(string(text)) {
		if v, ok := strings.CutPrefix(line, "MemAvailable:"); ok {
			n, _ := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(v), " kB"), 10, 64)
			return n
		}
	}
	return 0
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

func (b *bench) report(out string) error {
	missed := 0
	fmt.Printf("%-62s %9s %9s  %s\n", "", "berth", "runc", "target")
	for _, r := range b.Rows {
		other, ratio := "-", ""
		if r.Ratio != nil {
			other = fmt.Sprintf("%.1f %s", r.Other, r.Unit)
			ratio = fmt.Sprintf(" %.2f", r.Ratio.Factor)
			if r.Ratio.CI95 != nil {
				ratio += fmt.Sprintf(" (%.2f..%.2f)", r.Ratio.CI95[0], r.Ratio.CI95[1])
			}
		}
		verdict := "met"
		if !r.Met {
			verdict = "MISSED"
			missed++
		}
		fmt.Printf("%-62s %9s %9s  %s: %s%s\n", r.What, fmt.Sprintf("%.1f %s", r.Berth, r.Unit), other, r.Target, verdict, ratio)
		for _, c := range r.Carry {
			word := "as those after them"
			if c.Adjusted <= 0.05 {
				word = "NOT as those after them: make batches longer (-batch, -drop)"
			}
			fmt.Printf("  the first trials of a batch of %s that count are %s (%+.1f %%, p = %.2g)\n", c.Arm, word, c.WorsePct, c.Adjusted)
		}
	}
	fmt.Printf("Ratios: geometric mean of %d runs with its 95 %% interval, runs being the units; in a run %d batches of %d of each, the first %d of which do not count.\n",
		b.Runs, b.Rounds, b.Batch.Trials, b.Batch.Dropped)
	if out != "" {
		f, err := os.Create(out)
		if err != nil {
			return err
		}
		if err := errors.Join(b.JSON(f), f.Close()); err != nil {
			return err
		}
	}
	if missed > 0 {
		return fmt.Errorf("%d targets missed", missed)
	}
	return nil
}
