// Command benchstart measures how fast berth starts nodes, beside plain runc, on this machine: make bench-start.
//
// Everything that is compared is measured in one run, interleaved. It prints a table, writes JSON with -json, and exits
// with 1 when a target is missed.
package main

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
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

// row is one measurement beside its target.
type row struct {
	What    string    `json:"what"`
	Berth   float64   `json:"berth"`
	Other   float64   `json:"other,omitempty"` // what it is compared with
	Unit    string    `json:"unit"`
	Ratio   float64   `json:"ratio,omitempty"`
	Target  string    `json:"target"`
	Met     bool      `json:"met"`
	Samples []float64 `json:"samples,omitempty"`
	Others  []float64 `json:"other_samples,omitempty"`
}

type bench struct {
	berth, runc, dir, image string
	pairs, many             int
	rows                    []row
}

func main() {
	b := bench{}
	out := flag.String("json", "", "write every sample to `FILE`")
	flag.StringVar(&b.berth, "berth", "build/berth", "the berth to measure")
	flag.IntVar(&b.pairs, "pairs", 50, "pairs of what is compared")
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
	if err := os.Chmod(b.dir, 0o711); err != nil { // a node's ids pass through
		return err
	}
	b.image = filepath.Join(b.dir, "image")
	if err := measure.BusyboxRoot(b.image); err != nil {
		return err
	}
	for _, row := range []func() error{b.version, b.foreground, b.applyRemove, b.hundred, b.list} {
		if err := row(); err != nil {
			return err
		}
	}
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
	return append([]string{"--root", filepath.Join(b.dir, "root")}, args...)
}

func (b *bench) version() error {
	var all []float64
	for range b.pairs {
		ms, err := call(b.berth, "--version")
		if err != nil {
			return err
		}
		all = append(all, ms)
	}
	m := measure.MedianOf(all)
	b.rows = append(b.rows, row{What: "berth --version", Berth: m, Unit: "ms", Target: "under 10 ms", Met: m < 10, Samples: all})
	return nil
}

// foreground compares berth run (user namespace, seccomp, network namespace, overlay) with runc run of the same root
// without them.
func (b *bench) foreground() error {
	bundle, err := b.bundle("plain", "/bin/true")
	if err != nil {
		return err
	}
	run := func() (float64, error) {
		return call(b.berth, b.at("run", "--image", "dir:"+b.image, "--", "/bin/true")...)
	}
	plain := func() (float64, error) {
		return call(b.runc, "--root", filepath.Join(b.dir, "runc"), "run", "--bundle", bundle, "plain-"+strconv.Itoa(os.Getpid()))
	}
	return b.compare("run a command and remove the node", "runc run", 1.5, run, plain)
}

// applyRemove compares the making and removing of a lasting node.
func (b *bench) applyRemove() error {
	bundle, err := b.bundle("lasting", "/bin/sleep", "1000")
	if err != nil {
		return err
	}
	spec := filepath.Join(b.dir, "node.yaml")
	text := "name: n\nimage: dir:" + b.image + "\ncommand: [/bin/sleep, \"1000\"]\n"
	if err := os.WriteFile(spec, []byte(text), 0o600); err != nil {
		return err
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
			// create's own output would be held open by the node: give it none
			cmd := exec.Command(b.runc, append([]string{"--root", filepath.Join(b.dir, "runc")}, args...)...)
			start := time.Now()
			if err := cmd.Run(); err != nil {
				return 0, fmt.Errorf("runc %s: %w", args[0], err)
			}
			sum += float64(time.Since(start).Microseconds()) / 1000
		}
		return sum, nil
	}
	return b.compare("make, start and remove a node", "runc create, start, delete -f", 0.8, ours, theirs)
}

// compare measures both in turn, the first of each pair alternating.
func (b *bench) compare(what, with string, most float64, ours, theirs func() (float64, error)) error {
	if _, err := ours(); err != nil { // warm: the runtime is probed once a boot
		return err
	}
	if _, err := theirs(); err != nil {
		return err
	}
	var a, o []float64
	for i := range b.pairs {
		first, second, x, y := ours, theirs, &a, &o
		if i%2 == 1 {
			first, second, x, y = theirs, ours, &o, &a
		}
		for _, m := range []struct {
			f  func() (float64, error)
			to *[]float64
		}{{first, x}, {second, y}} {
			ms, err := m.f()
			if err != nil {
				return err
			}
			*m.to = append(*m.to, ms)
		}
	}
	r := measure.MedianOf(a) / measure.MedianOf(o)
	b.rows = append(b.rows, row{
		What: what + " / " + with, Berth: measure.MedianOf(a), Other: measure.MedianOf(o), Unit: "ms", Ratio: r,
		Target: fmt.Sprintf("at most %.1f times", most), Met: r <= most, Samples: a, Others: o,
	})
	return nil
}

// bundle makes a plain bundle as runc spec makes it: no user namespace, no network, no terminal.
func (b *bench) bundle(name string, args ...string) (string, error) {
	return measure.RuntimeBundle(b.runc, filepath.Join(b.dir, name), b.image, args...)
}

// hundred starts 100 nodes, 8 at a time, and weighs what they cost beside their own process.
func (b *bench) hundred() error {
	const n = 100
	keep := exec.Command(b.berth, b.at("run", "--image", "dir:"+b.image, "--name", "first", "--", "/bin/sleep", "1000")...)
	if err := keep.Start(); err != nil { // so that the keeper is there already and its own start is not divided by 100
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
	b.rows = append(b.rows,
		row{What: "100 nodes, 8 at a time", Berth: took, Unit: "s", Target: "under 4 s", Met: took < 4},
		row{What: "memory a node, beside its own process", Berth: each, Unit: "MiB", Target: "under 1 MiB", Met: each < 1})
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
	b.rows = append(b.rows, row{What: fmt.Sprintf("berth ls of %d running nodes", b.many), Berth: m, Unit: "ms", Target: "under 100 ms", Met: m < 100, Samples: all})
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

// eight calls f for 0 … n-1, eight at a time.
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

// available is MemAvailable in KiB.
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

// pssOfNodes is what the nodes' own processes hold, in KiB.
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
	fmt.Printf("%-52s %9s %9s  %s\n", "", "berth", "other", "target")
	for _, r := range b.rows {
		other := "-"
		if r.Other != 0 {
			other = fmt.Sprintf("%.1f %s", r.Other, r.Unit)
		}
		verdict := "met"
		if !r.Met {
			verdict = "MISSED"
			missed++
		}
		ratio := ""
		if r.Ratio != 0 {
			ratio = fmt.Sprintf(" (%.2f)", r.Ratio)
		}
		fmt.Printf("%-52s %9s %9s  %s: %s%s\n", r.What, fmt.Sprintf("%.1f %s", r.Berth, r.Unit), other, r.Target, verdict, ratio)
	}
	if out != "" {
		text, err := json.MarshalIndent(b.rows, "", " ")
		if err != nil {
			return err
		}
		if err := os.WriteFile(out, append(text, '\n'), 0o644); err != nil {
			return err
		}
	}
	if missed > 0 {
		return fmt.Errorf("%d targets missed", missed)
	}
	return nil
}
