// Command run measures the headline and writes its report: docs/evidence/headline.json.gz and .txt. See package headline.
//
//	run [-rounds N] [-arms A,B] [-reads N] [-seconds N] [-model PCT] [-seed N] [-page FILE] -out NAME    a new run
//	run -resume -out NAME                       continues an interrupted run
//	run -again -out NAME                        computes the report from its trials again; measures nothing
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"

	"berth/test/lab/headline"
	"berth/tools/marks"
)

func main() {
	var o headline.Options
	flag.IntVar(&o.Rounds, "rounds", 0, "rounds (default 9)")
	arms := flag.String("arms", "", "which of "+strings.Join(headline.Names(), ",")+" (default all)")
	flag.IntVar(&o.Reads, "reads", 0, "reads of one trial (default 1000)")
	flag.IntVar(&o.Seconds, "seconds", 0, "of one trial (default 20)")
	flag.IntVar(&o.ModelPct, "model", 0, "what io.cost is told that the disk does, in percent of it (default 100)")
	flag.Uint64Var(&o.Seed, "seed", 0, "of the order (default: a random one)")
	out := flag.String("out", "", "write NAME.json.gz, after each trial, and NAME.txt")
	resume := flag.Bool("resume", false, "go on with NAME.json.gz, as it was planned")
	page := flag.String("page", "", "put the arms and the main questions into this `FILE`, between its marks")
	again := flag.Bool("again", false, "compute NAME.txt and what NAME.json.gz has beside trials anew")
	flag.Parse()
	if *resume || *again {
		flag.Visit(func(f *flag.Flag) {
			if slices.Contains([]string{"rounds", "arms", "reads", "seconds", "model", "seed"}, f.Name) {
				fmt.Fprintf(os.Stderr, "headline: -%s is fixed by the run that is there: leave it out\n", f.Name)
				os.Exit(2)
			}
		})
	}
	if *arms != "" {
		o.Arms = strings.Split(*arms, ",")
	}
	o.Progress = func(text string) { fmt.Fprintln(os.Stderr, "headline:", text) }
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, o, *out, *page, *resume, *again); err != nil {
		fmt.Fprintln(os.Stderr, "headline:", err)
		stop()
		os.Exit(1)
	}
}

func run(ctx context.Context, o headline.Options, out, page string, resume, again bool) error {
	var earlier *headline.Report
	if resume || again {
		f, err := os.Open(out + ".json.gz")
		if err != nil {
			return err
		}
		earlier, err = headline.Read(f)
		if err = errors.Join(err, f.Close()); err != nil {
			return fmt.Errorf("%s.json.gz: %w", out, err)
		}
	}
	var r *headline.Report
	var err error
	switch {
	case again:
		r = earlier
	case resume && !earlier.Partial:
		return fmt.Errorf("%s.json.gz is of a run that is whole: without -resume a new one begins", out)
	default:
		if out != "" {
			o.Keep = func(r *headline.Report) error { return write(out+".json.gz", r.JSON) }
		}
		r, err = headline.Run(ctx, o, earlier)
	}
	if r == nil {
		return err
	}
	errs := []error{err, r.Text(os.Stdout)}
	if out != "" {
		errs = append(errs, write(out+".json.gz", r.JSON), write(out+".txt", r.Text))
	}
	if page != "" && !r.Partial {
		errs = append(errs, marks.Write(page, "headline", "```\n"+r.Short()+"```\n"))
	}
	return errors.Join(errs...)
}

// write replaces a file atomically.
func write(path string, print func(io.Writer) error) error {
	f, err := os.Create(path + ".new")
	if err != nil {
		return err
	}
	if err := errors.Join(print(f), f.Close()); err != nil {
		return err
	}
	return os.Rename(path+".new", path)
}
