// Command run measures the headline and writes its report: docs/evidence/headline.json and .txt. See package headline.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"berth/test/lab/headline"
)

func main() {
	var o headline.Options
	flag.IntVar(&o.Rounds, "rounds", 0, "rounds (default 12)")
	flag.DurationVar(&o.Trial, "trial", 0, "of one trial (default 15s)")
	flag.Uint64Var(&o.Seed, "seed", 0, "of the order (default: a random one)")
	flag.StringVar(&o.Engine, "engine", "", "that the protected arm's disk is switched to (default iocost)")
	flag.IntVar(&o.ModelPct, "model", 0, "what io.cost is told that the disk does, in percent of it (default 100)")
	out := flag.String("out", "", "write NAME.json and NAME.txt")
	flag.Parse()
	o.Progress = func(text string) { fmt.Fprintln(os.Stderr, "headline:", text) }
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, o, *out); err != nil {
		fmt.Fprintln(os.Stderr, "headline:", err)
		stop()
		os.Exit(1)
	}
}

func run(ctx context.Context, o headline.Options, out string) error {
	r, err := headline.Run(ctx, o)
	if r == nil {
		return err
	}
	errs := []error{err, r.Text(os.Stdout)}
	if out != "" {
		errs = append(errs, write(out+".json", r.JSON), write(out+".txt", r.Text))
	}
	return errors.Join(errs...)
}

func write(path string, print func(io.Writer) error) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	return errors.Join(print(f), f.Close())
}
