// Command nullrows measures many rows of the host against itself, to show how often `berth bench disk` reports a
// difference where there is none. It writes null-rows.json and null-rows.txt into the folder -out.
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
	o := bench.Options{Quick: true}
	flag.StringVar(&o.Dir, "dir", "/var/tmp", "folder on the disk that is measured")
	flag.IntVar(&o.Pairs, "pairs", 8, "pairs a row")
	flag.DurationVar(&o.Run, "run", 200*time.Millisecond, "length of a trial")
	flag.DurationVar(&o.Warm, "warm", 50*time.Millisecond, "warm-up of a trial")
	flag.Uint64Var(&o.Seed, "seed", 2015, "of the order of the trials")
	name := flag.String("machine", "", "name of this machine (default: its host name)")
	flag.Parse()

	begun := time.Now()
	rep, err := bench.NullRows(ctx, *rows, o, bench.Arms{Host: bench.Host, Null: bench.Host}, func(done, total int) {
		fmt.Fprintf(os.Stderr, "%d of %d rows after %v\n", done, total, time.Since(begun).Round(time.Second))
	})
	if rep == nil || len(rep.Rows) == 0 {
		return err
	}
	rep.Name = *name
	return errors.Join(err, keep(*out, rep), rep.Check())
}

func keep(dir string, rep *bench.NullReport) error {
	return errors.Join(
		write(filepath.Join(dir, "null-rows.json"), rep.JSON),
		write(filepath.Join(dir, "null-rows.txt"), rep.Text),
		rep.Text(os.Stdout))
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
