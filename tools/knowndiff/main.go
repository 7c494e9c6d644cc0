// Command knowndiff shows that the benchmark finds a difference of known size and none where there is none. It caps the
// reads of three arms by the same kernel mechanism at 100, 97 and again 100 MB/s, on its own loop device. It writes
// known-difference.json and known-difference.txt into the folder -out.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"berth/internal/bench"
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
	var k bench.Known
	o := bench.Options{DestroyData: true, Size: 64 << 20}
	out := flag.String("out", "docs/evidence", "folder for the results")
	dir := flag.String("dir", "/dev/shm", "folder for the file under the loop device: in memory, for what is measured is the cap")
	rate := flag.Int64("rate", 100e6, "cap of the reference, bytes per second")
	block := flag.Int64("block", 64<<10, "bytes of a request")
	// With several threads a request always waits for the cap, also when one of the threads waits for a CPU on a busy machine.
	// So the cap is measured, not the scheduling.
	jobs := flag.Int("jobs", 8, "threads")
	flag.IntVar(&k.Runs, "runs", 20, "runs")
	flag.Float64Var(&k.TruePct, "slower", 3, "how much slower the second arm is, percent")
	flag.StringVar(&k.Name, "machine", "", "name of this machine (default: its host name)")
	flag.IntVar(&o.Pairs, "pairs", 12, "pairs a run")
	flag.Float64Var(&o.MarginPct, "margin", 1, "margin of the verdicts, percent: below the difference, else that would be equivalent")
	flag.DurationVar(&o.Run, "run", 500*time.Millisecond, "length of a trial")
	flag.DurationVar(&o.Warm, "warm", 100*time.Millisecond, "warm-up of a trial")
	flag.Uint64Var(&o.Seed, "seed", 2015, "of the order of the trials")
	flag.Parse()

	disk, err := newLoop(*dir, o.Size)
	if err != nil {
		return err
	}
	o.Device = disk.Name()
	number := disk.number
	defer func() { err = errors.Join(err, disk.Close()) }() // the kernel detaches the device at its last close
	c, err := newCaps()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.close()) }()
	arms := bench.Arms{}
	for role, a := range map[string]struct {
		arm *bench.Arm
		bps float64
	}{"host": {&arms.Host, 1}, "slower": {&arms.Node, 1 - k.TruePct/100}, "equal": {&arms.Null, 1}} {
		procs, err := c.group(role, number, int64(a.bps*float64(*rate)))
		if err != nil {
			return err
		}
		*a.arm = bench.InGroups(procs)
	}
	k.Mechanism = fmt.Sprintf("%s at %d MB/s", c.mechanism, *rate/1e6)
	o.Rows = []bench.Row{{Name: fmt.Sprintf("read %dK x%d", *block>>10, *jobs), Shape: bench.RandomRead, Block: *block, Jobs: *jobs}}

	begun := time.Now()
	rep, err := bench.KnownDifference(ctx, k, o, arms, func(done, total int) {
		fmt.Fprintf(os.Stderr, "%d of %d runs after %v\n", done, total, time.Since(begun).Round(time.Second))
	})
	if rep == nil || len(rep.Runs) == 0 {
		return err
	}
	err = errors.Join(err, write(filepath.Join(*out, "known-difference.json"), rep.JSON))
	err = errors.Join(err, write(filepath.Join(*out, "known-difference.txt"), rep.Text))
	return errors.Join(err, rep.Text(os.Stdout), rep.Check())
}

func write(path string, to func(io.Writer) error) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return fmt.Errorf("make the folder for %s: %w", path, err)
	}
	f, err := os.Create(path)
	if err != nil {
		return fmt.Errorf("write the results: %w", err)
	}
	return errors.Join(to(f), f.Close())
}
