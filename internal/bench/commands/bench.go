// Package commands holds the commands that measure what nodes cost, and that show the results.
package commands

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"berth/internal/bench"
	"berth/internal/bench/bed"
	"berth/internal/bench/report"
	"berth/internal/bench/result"
	"berth/internal/node"
	"berth/internal/spec/vnode"
	"berth/internal/sys/file"
	"berth/internal/sys/refuse"
	"berth/internal/sys/text"
)

// App is what the commands share with the rest of the command line.
type App struct {
	In         *os.File
	Out, Err   io.Writer
	JSON       *bool // --json
	Open       func() *node.Berth
	At         func(root string) *node.Berth                                      // as Open, of one that keeps its state in another place
	Valid      func(*vnode.Node) error                                            // says what is wrong with a node in the words of flags
	Machine    func(m *vnode.Machine, parts string, own map[string]*string) error // reads --machine; own are the caller's parts, paths, by name
	OnTerminal func() bool
	JSONFlag   func(*cobra.Command) *cobra.Command
	PrintJSON  func(any) error
}

// Command returns the command berth bench.
func (a App) Command() *cobra.Command {
	c := &cobra.Command{
		Use: "bench", Short: "measure what a node costs against the bare host",
		Example: "  berth bench disk --quick\n  berth bench net --quick\n  berth bench run all --budget 20m",
	}
	c.AddCommand(a.listCmd(), a.runCmd(), a.diskCmd(), a.netCmd(), a.isolationCmd(), a.gatewayCmd(), a.syncCmd(), a.explainCmd(), a.reportCmd(), a.compareCmd(), a.cpuCmd(), a.pingCmd())
	return c
}

// flags are the flags of the commands that measure. They have the same names and meanings in all of them.
type flags struct {
	bed.Options
	size, jsonFile string
}

// onTrials adds the flags about trials. The texts tell the command's own defaults.
func (f *flags) onTrials(fl *pflag.FlagSet, run, pairs, margin string) {
	fl.DurationVar(&f.Run, "run", 0, "length of one trial, a `TIME` ("+run+")")
	fl.DurationVar(&f.Warm, "warm", 0, "warm-up of a trial, a `TIME` (default: a part of --run)")
	fl.IntVar(&f.Pairs, "pairs", 0, "`N` pairs a row ("+pairs+")")
	fl.Float64Var(&f.MarginPct, "margin", 0, "largest difference that counts as none, in `PERCENT` ("+margin+")")
	fl.Uint64Var(&f.Seed, "seed", 0, "`SEED` of the order of trials (default: a random one, reported)")
	fl.StringVar(&f.jsonFile, "json", "", "write every trial to `FILE` as JSON; - is standard output")
}

// onDisks adds the flags about what is measured.
func (f *flags) onDisks(fl *pflag.FlagSet, size string) {
	fl.StringArrayVar(&f.Dirs, "dir", nil, "`FOLDER` on a disk that is measured (default /var/tmp)")
	fl.StringArrayVar(&f.Devices, "device", nil, "block `DEVICE` to measure; only read, unless --destroy-data")
	fl.BoolVar(&f.DestroyData, "destroy-data", false, "write to --device: what is on it is lost")
	fl.StringVar(&f.size, "size", "", "how much of a disk is used, a `SIZE` ("+size+")")
}

// complete parses --size, and makes folders absolute: a resumed run may have another working directory.
func (f *flags) complete() error {
	if f.size != "" {
		size, err := vnode.ParseBytes(f.size)
		if err != nil {
			return refuse.Invalidf("--size: %w", err)
		}
		f.Size = int64(size)
	}
	for i, d := range f.Dirs {
		dir, err := filepath.Abs(d)
		if err != nil {
			return err
		}
		f.Dirs[i] = dir
	}
	return nil
}

// one refuses more than one disk, for the commands that measure one.
func (f *flags) one() error {
	if len(f.Dirs)+len(f.Devices) > 1 {
		return refuse.Invalidf("one folder or device is measured: give --dir or --device once")
	}
	return f.complete()
}

// table measures the experiments that f names, and prints the report. With --json each trial is in a journal beside the file until that is
// whole.
func (a App) table(cmd *cobra.Command, f *flags) error {
	lab, err := a.lab()
	if err != nil {
		return err
	}
	out, err := f.beside()
	if err != nil {
		return err
	}
	s, err := a.watched(cmd, func(ctx context.Context, progress func(bed.Progress)) (*result.Study, error) {
		return bench.Run(ctx, f.Options, lab, out.journal, progress)
	})
	if s == nil {
		return out.failed(err, false)
	}
	if lost := a.printStudy(s, f.jsonFile); lost != nil {
		if out.journal != "" {
			lost = fmt.Errorf("%w; each trial is in %s", lost, out.journal)
		}
		return errors.Join(lost, err)
	}
	return errors.Join(out.written(s), err)
}

// measuring makes a study.
type measuring func(context.Context, func(bed.Progress)) (*result.Study, error)

// measure calls do, and prints what it returns.
func (a App) measure(cmd *cobra.Command, jsonFile string, do measuring) error {
	if err := checkOutput(jsonFile); err != nil {
		return err
	}
	s, err := a.watched(cmd, do)
	if s == nil {
		return err
	}
	return errors.Join(a.printStudy(s, jsonFile), err)
}

// watched calls do, and shows the progress meanwhile if there is a terminal.
func (a App) watched(cmd *cobra.Command, do measuring) (*result.Study, error) {
	ctx, stop := signal.NotifyContext(cmd.Context(), syscall.SIGHUP)
	defer stop()
	var progress func(bed.Progress)
	end := func() {}
	if a.OnTerminal() {
		progress, end = bench.Bar(text.Raw(a.Err))
	}
	defer func() { end() }()
	return do(ctx, progress)
}

// printStudy prints the text and writes the JSON to jsonFile, if one is given. With jsonFile "-" it prints only the JSON.
func (a App) printStudy(s *result.Study, jsonFile string) error {
	if jsonFile == "-" {
		return s.JSON(a.Out)
	}
	r, err := report.Of(s, "report")
	if err != nil {
		return err
	}
	if err := r.Text(a.Out); err != nil || jsonFile == "" {
		return err
	}
	return writeFile(jsonFile, s.JSON)
}

// checkOutput refuses a file to which nothing can be written, before something is measured for it.
func checkOutput(path string) error {
	if path == "" || path == "-" {
		return nil
	}
	return file.CheckOutput(path)
}

func writeFile(path string, write func(io.Writer) error) error {
	return file.Output(path, 0o644, func(f *os.File) error { return write(f) })
}
