// Command knowndiff shows that the benchmark finds a difference of known size and none where there is none. It caps the
// reads of three arms by the same kernel mechanism at 100, 97 and again 100 MB/s, on its own loop device. It writes
// known-difference.json and known-difference.txt into the folder -out.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"

	"berth/internal/bench/bed"
	"berth/internal/bench/side"
	"berth/internal/host/block"
	"berth/test/loop"
	"berth/tools/promise"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	if err := run(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "knowndiff:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context) (err error) {
	var k known
	o := bed.Options{DestroyData: true, Size: 64 << 20}
	out := flag.String("out", "docs/evidence", "folder for the results")
	dir := flag.String("dir", "/dev/shm", "folder for the file under the loop device: in memory, for what is measured is the cap")
	rate := flag.Int64("rate", 100e6, "cap of the reference, bytes per second")
	size := flag.Int64("block", 64<<10, "bytes of a request")
	// With several threads a request always waits for the cap, also when one of the threads waits for a CPU on a busy machine.
	// So the cap is measured, not the scheduling.
	jobs := flag.Int("jobs", 8, "threads")
	flag.IntVar(&k.runs, "runs", 20, "runs")
	flag.Float64Var(&k.truePct, "slower", 3, "how much slower the second arm is, percent")
	flag.StringVar(&k.machine, "machine", "", "name of this machine (default: its host name)")
	flag.IntVar(&o.Pairs, "pairs", 12, "pairs a run")
	flag.Float64Var(&o.MarginPct, "margin", 1, "margin of the verdicts, percent: below the difference, else that would be equivalent")
	flag.DurationVar(&o.Run, "run", 500*time.Millisecond, "length of a trial")
	flag.DurationVar(&o.Warm, "warm", 100*time.Millisecond, "warm-up of a trial")
	flag.Uint64Var(&o.Seed, "seed", 2015, "of the order of the trials")
	flag.Parse()

	dev, err := loop.New(*dir, o.Size)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, dev.Close()) }()
	o.Devices = []string{dev.Name()}
	disk, err := block.Resolve("/sys", dev.Name())
	if err != nil {
		return err
	}
	c, err := newCaps()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.close()) }()
	var host, equal, slower side.Arm
	for role, a := range map[string]struct {
		arm *side.Arm
		bps float64
	}{"host": {&host, 1}, "slower": {&slower, 1 - k.truePct/100}, "equal": {&equal, 1}} {
		procs, err := c.group(role, disk.Number(), int64(a.bps*float64(*rate)))
		if err != nil {
			return err
		}
		*a.arm = side.InGroups(procs)
	}
	k.mechanism = fmt.Sprintf("%s at %d MB/s", c.mechanism, *rate/1e6)
	job := bed.Job{Name: fmt.Sprintf("read %dK x%d", *size>>10, *jobs), Pattern: "randread", Block: *size, Threads: *jobs}

	begun := time.Now()
	s, err := k.measure(ctx, o, job, host, equal, slower, func(done int) {
		fmt.Fprintf(os.Stderr, "%d of %d runs after %v\n", done, k.runs, time.Since(begun).Round(time.Second))
	})
	if s == nil || len(s.Experiments[0].Rows) == 0 {
		return err
	}
	n := k.count(s)
	return errors.Join(err, promise.Keep(*out, "known-difference", s, k.text(n, s)), promise.Missed(n.criteria()))
}
