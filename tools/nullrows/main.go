// Command nullrows measures many rows of the host against itself, to show how often `berth bench disk` reports a
// difference where there is none. It writes null-rows.json and null-rows.txt into the folder -out.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"runtime"
	"syscall"
	"time"

	"berth/internal/bench/bed"
	"berth/internal/bench/result"
	"berth/internal/bench/side"
	"berth/tools/promise"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "nullrows:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context) error {
	rows := flag.Int("rows", 200, "rows to measure")
	out := flag.String("out", "docs/evidence", "folder for the results")
	o := bed.Options{Quick: true}
	dir := flag.String("dir", "/var/tmp", "folder on the disk that is measured")
	flag.IntVar(&o.Pairs, "pairs", 8, "pairs a row")
	flag.DurationVar(&o.Run, "run", 200*time.Millisecond, "length of a trial")
	flag.DurationVar(&o.Warm, "warm", 50*time.Millisecond, "warm-up of a trial")
	flag.Uint64Var(&o.Seed, "seed", 2015, "of the order of the trials")
	name := flag.String("machine", "", "name of this machine (default: its host name)")
	flag.Parse()
	o.Dirs = []string{*dir}

	begun := time.Now()
	s, err := nullRows(ctx, *rows, o, side.Host, side.Host, func(done int) {
		fmt.Fprintf(os.Stderr, "%d of %d rows after %v\n", done, *rows, time.Since(begun).Round(time.Second))
	})
	if s == nil || len(s.Experiments[0].Rows) == 0 {
		return err
	}
	n := countRows(s)
	return errors.Join(err, promise.Keep(*out, "null-rows", s, n.text(s, *name)), promise.Missed(n.criteria()))
}

// nullRows repeats quick runs of two equal arms until it has n rows. Each run has an order of its own, from o.Seed on; set
// o.Pairs. Each run is the pilot of the next one; the first is that alone. Interrupted, it returns what it has, marked partial,
// beside the error.
func nullRows(ctx context.Context, n int, o bed.Options, host, null side.Arm, progress func(done int)) (*result.Study, error) {
	about := result.About{
		Name: "null", Title: "The host against itself", Question: "How often is the host called different from itself?",
		Setting: "quick runs of berth bench disk without a node, one after the other",
	}
	sides := []bed.Side{{Name: result.Host, Title: "host", Run: host}, {Name: result.Null, Title: "host again", Run: null}}
	name := func(run int, row string) string { return fmt.Sprintf("run %d: %s", run, row) }
	all, err := promise.Repeat(ctx, o, about, bed.Rows(true, runtime.NumCPU()), sides, name, func(_, rows int) bool {
		progress(rows)
		return rows < n
	})
	if err == nil {
		e := &all.Experiments[0]
		e.Rows = e.Rows[:n]
		all.Judge()
	}
	return all, err
}
