// Command testrun runs the tests of packages. Its last line says how many tests passed, failed and were skipped; above it
// are the reasons of the skips, and what failed with its first lines.
//
//	go run ./tools/testrun [-race] [-short] [-run REGEXP] [-skips FILE] [-alone FILE] [-tiers FILE [-tier TIER [-subject SUBJECT]]]
//	    [-rerun FILE] [-clock DURATION] [-package-clock DURATION] [-products] [-result FILE] [-json FILE] PACKAGE…
//
// It first builds all test programs. Then it runs as many packages at once as there are CPUs. The packages that FILE of
// -alone names run after them, one at a time, because they measure or look at what the whole host holds. Words after a name say
// otherwise: "first" packages do not run alone, they begin before all others, because they take long; "waits" ones mostly wait, and run
// one at a time beside all others that do not run alone; "plain" ones only compute, and "drives" ones only start programs: both are built without the race detector, which makes them several times slower
// and has nothing to find; "measures" ones run alone, without it. A line says when a package begins, another when it ends, and each
// minute one says what is running.
//
// FILE of -tiers names the tests that are not in the run of all: package tierlist has its form. With -tier only those of a tier run.
// FILE of -rerun names packages whose tests wait for other processes or for the kernel: there a failed test runs twice more, once with
// its whole package and once alone. If it passes both times it is told as flaky and not counted as failed; again.go has the rules.
// -clock ends the run: what then runs is killed with its process group and counted as failed. -package-clock is how long a
// package may run before its goroutines are printed and it counts as failed.
//
// Only leaves count: a test with subtests is not counted in addition to them, unless it failed by itself. A package that
// does not build, or that ends outside of a test, counts as one failure. With -skips, a skip is a failure too unless a
// line of FILE, a regular expression, matches its reason. -result writes the date, the commit, each package's time, the CPU
// time of its processes, of a tier each test's verdict and the machine, what failed and the last line to FILE; -json writes the events, as go test -json does.
// Exit code: 0 when nothing failed, else 1.
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime"
	"strings"
	"syscall"
	"time"

	"berth/tools/tierlist"
)

// files are the lists that a run reads and the results that it writes; "" means none.
type files struct{ skips, alone, tiers, rerun, result, events string }

func main() {
	var o options
	var f files
	clock := flag.Duration("clock", 0, "end the run after this time")
	flag.BoolVar(&o.race, "race", false, "build with the race detector")
	flag.BoolVar(&o.short, "short", false, "tell tests to leave out what takes long, and leave out packages that start programs")
	flag.BoolVar(&o.products, "products", false, "build the programs of Berth that tests start before the first test")
	flag.StringVar(&o.only, "run", "", "run only the tests that match this `regexp`")
	flag.StringVar(&o.tier, "tier", "", "run only the tests of this tier")
	flag.StringVar(&o.subject, "subject", "", "run only the tests of the tier with this subject")
	flag.DurationVar(&o.packageClock, "package-clock", time.Hour, "end a package after this time")
	flag.StringVar(&f.skips, "skips", "", "the allowed reasons for skips, one regular expression a line")
	flag.StringVar(&f.alone, "alone", "", "the packages that run one at a time, or first, one a line")
	flag.StringVar(&f.tiers, "tiers", "", "the tests of other tiers, one a line")
	flag.StringVar(&f.rerun, "rerun", "", "the packages whose failed tests are looked at again, one a line")
	flag.StringVar(&f.result, "result", "", "write what came out to this file")
	flag.StringVar(&f.events, "json", "", "write the events of the tests to this file")
	flag.Parse()
	o.patterns, o.atOnce, o.every = flag.Args(), runtime.NumCPU(), time.Minute
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	if *clock > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, *clock, fmt.Errorf("the run's clock of %s ended", *clock))
		defer cancel()
	}
	ok, err := o.main(ctx, f, os.Stdout)
	if err != nil {
		fmt.Fprintln(os.Stderr, "testrun:", err)
	}
	if err != nil || !ok {
		os.Exit(1)
	}
}

// main reads the lists, runs the tests and keeps the result.
func (o options) main(ctx context.Context, f files, w io.Writer) (bool, error) {
	var allowed *allowList
	var err error
	if f.skips != "" {
		if allowed, err = readAllowList(f.skips); err != nil {
			return false, err
		}
	}
	if f.alone != "" {
		if err = o.readAlone(f.alone); err != nil {
			return false, err
		}
	}
	if f.tiers != "" {
		if o.tiers, err = tierlist.Read(f.tiers); err != nil {
			return false, err
		}
	}
	if f.rerun != "" {
		if o.rerun, err = tierlist.Lines(f.rerun); err != nil {
			return false, err
		}
	}
	t := newTally(w)
	if f.events != "" {
		events, err := create(f.events)
		if err != nil {
			return false, err
		}
		defer events.Close()
		t.events = events
	}
	if err := o.run(ctx, t); err != nil {
		return false, err
	}
	ok := t.report(allowed)
	if f.result != "" {
		err = t.keep(f.result, o.commit(), strings.TrimSpace(o.tier+" "+o.subject))
	}
	return ok, err
}
