// Command testrun runs the tests of packages. Its last line says how many tests passed, failed and were skipped; above it
// are the reasons of the skips, and what failed with its last lines.
//
//	go run ./tools/testrun [-race] [-short] [-run REGEXP] [-skips FILE] [-alone FILE] [-result FILE] PACKAGE…
//
// It first builds all test programs. Then it runs as many packages at once as there are CPUs. The packages that FILE of
// -alone names run after them, one at a time, because they measure or look at what the whole host holds. Those with the word
// "first" after their name do not run alone: they begin before all others, because they take long; those with "plain" only
// compute, and are built without the race detector, which makes them several times slower and has nothing to find; those with
// "measures" run alone, without it. A line says when a
// package begins, another when it ends, and each minute one says what is running.
//
// Only leaves count: a test with subtests is not counted in addition to them, unless it failed by itself. A package that
// does not build, or that ends outside of a test, counts as one failure. With -skips, a skip is a failure too unless a
// line of FILE, a regular expression, matches its reason. -result writes the date, the commit, each package's time, the CPU
// time of its processes and the last line to FILE.
// Exit code: 0 when nothing failed, else 1.
package main

import (
	"flag"
	"fmt"
	"io"
	"os"
	"runtime"
	"time"
)

func main() {
	var o options
	var skips, alone, result string
	flag.BoolVar(&o.race, "race", false, "build with the race detector")
	flag.BoolVar(&o.short, "short", false, "tell tests to leave out what takes long")
	flag.StringVar(&o.only, "run", "", "run only the tests that match this `regexp`")
	flag.StringVar(&skips, "skips", "", "the allowed reasons for skips, one regular expression a line")
	flag.StringVar(&alone, "alone", "", "the packages that run one at a time, or first, one a line")
	flag.StringVar(&result, "result", "", "write what came out to this file")
	flag.Parse()
	o.patterns, o.atOnce, o.every = flag.Args(), runtime.NumCPU(), time.Minute
	ok, err := o.main(skips, alone, result, os.Stdout)
	if err != nil {
		fmt.Fprintln(os.Stderr, "testrun:", err)
	}
	if err != nil || !ok {
		os.Exit(1)
	}
}

// main reads the lists, runs the tests and keeps the result.
func (o options) main(skips, alone, result string, w io.Writer) (bool, error) {
	var allowed *allowList
	var err error
	if skips != "" {
		if allowed, err = readAllowList(skips); err != nil {
			return false, err
		}
	}
	if alone != "" {
		if err = o.readAlone(alone); err != nil {
			return false, err
		}
	}
	t := newTally(w)
	if err := o.run(t); err != nil {
		return false, err
	}
	ok := t.report(allowed)
	if result != "" {
		err = t.keep(result, o.commit())
	}
	return ok, err
}
