package commands

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"berth/internal/bench"
	"berth/internal/bench/bed"
	"berth/internal/bench/nodes"
	"berth/internal/bench/report"
	"berth/internal/bench/result"
	"berth/internal/bench/side"
	"berth/internal/bench/wire"
	"berth/internal/node"
	"berth/internal/spec/vnode"
	"berth/internal/sys/refuse"
	"berth/internal/sys/version"
)

// studyFlags are the flags of berth bench run.
type studyFlags struct {
	flags
	out, resume, machine string
}

func (a App) runCmd() *cobra.Command {
	var f studyFlags
	c := &cobra.Command{
		Use: "run NAME… | all", Short: "measure experiments and write a report",
		Args: cobra.ArbitraryArgs,
		Long: `Measure the experiments of berth bench list: each on the host, in a node, and on
the host again (the null arm), or as it says, in random alternating order. A
short pilot fixes the number of pairs before the first one that counts: enough
to decide the margin with 90 % power, or what the budget allows; the report
says which. If trials are seen to change with what ran before them, the
experiment is measured again in batches of one arm, beyond the budget; start is
measured in batches at once. share/doc/berth/METHOD.md explains the method.

The folder --out gets report.html (one page, nothing else needed), report.json,
report.csv, report.txt and journal.jsonl, which has each trial as soon as it is
done: --resume goes on with a run that was interrupted or killed. Interrupted,
it reports what was measured and marks it partial.

With --machine there is an arm of virtual machines beside host and node, in disk
experiments on a --device, in cpu, cpu-db12 and start. Its image (berth image
pack) has the programs that measure, in the host's version.

In each --dir the file .berth-bench.data is written to and removed, with
wnodes-file .berth-bench.data.new too. They carry the extended attribute
user.berth.bench, by which the next run knows those that a killed one left. A
file of that name without it is refused and not touched. No other file, and no
device is written to without --destroy-data.`,
		Example: `  berth bench run all --budget 20m
  berth bench run fio-d iozone-each --dir /srv/a --dir /srv/b --budget 2h
  berth bench run net-openlab --peer 192.0.2.9 \
    --network sriov:enp4s0f0,192.0.2.50/24
  berth bench run cpu --machine image=/srv/a.erofs,kernel=/boot/vmlinuz
  berth bench run fio-b --sessions 5 --out kernel-6.18
  berth bench run --resume kernel-6.18`,
		RunE: func(cmd *cobra.Command, args []string) error {
			f.Names = args
			return a.run(cmd, &f)
		},
		ValidArgsFunction: func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
			names := []string{"all"}
			for _, e := range bed.Catalogue() {
				names = append(names, e.Name+"\t"+e.Title)
			}
			return names, cobra.ShellCompDirectiveNoFileComp
		},
	}
	fl := c.Flags()
	f.onDisks(fl, "default 1GiB")
	f.onNetworks(fl)
	f.onTrials(fl, "default: the experiment's, shorter where the time is short", "default: what the pilot asks for", "default 5")
	fl.DurationVar(&f.Budget, "budget", 0, "`TIME` for all experiments of a session together (default 20m)")
	fl.IntVar(&f.Sessions, "sessions", 0, "repeat everything `N` times, to measure how sessions differ (default 1)")
	fl.StringVar(&f.machine, "machine", "", "an arm of virtual machines, of `PARTS` with commas between: image=PATH kernel=PATH cpus=N memory=SIZE")
	fl.StringVar(&f.out, "out", "", "`DIR` for the report (default berth-bench- and the time)")
	fl.StringVar(&f.resume, "resume", "", "go on with the run of this `DIR` or FILE")
	c.MarkFlagsMutuallyExclusive("out", "json")
	return c
}

// outputs are the files of a run.
type outputs struct {
	dir, json, journal string
	temporary          bool // the journal, in a folder of its own: such a run cannot be resumed
}

// beside returns where the JSON goes that --json asks for, and the journal beside it; the zero value without the flag.
func (f *flags) beside() (outputs, error) {
	if err := checkOutput(f.jsonFile); err != nil || f.jsonFile == "" {
		return outputs{}, err
	}
	is, err := os.Stat(f.jsonFile)
	if f.jsonFile == "-" || err == nil && !is.Mode().IsRegular() { // nothing is put beside a device
		tmp, err := os.MkdirTemp("", "berth-bench-")
		return outputs{json: f.jsonFile, journal: filepath.Join(tmp, "journal.jsonl"), temporary: true}, err
	}
	return outputs{json: f.jsonFile, journal: f.jsonFile + ".journal"}, nil
}

// outputs decides where the files go, and makes the folder of the report.
func (f *studyFlags) outputs(now time.Time) (outputs, error) {
	if at := f.resume; at != "" {
		if fi, err := os.Stat(at); err == nil && fi.IsDir() {
			return outputs{dir: at, journal: filepath.Join(at, "journal.jsonl")}, nil
		}
		at = strings.TrimSuffix(at, ".journal")
		return outputs{json: at, journal: at + ".journal"}, nil
	}
	if f.jsonFile != "" {
		return f.beside()
	}
	dir := f.out
	if dir == "" {
		dir = "berth-bench-" + now.Format("20060102-150405")
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return outputs{}, fmt.Errorf("make the folder of the report: %w", err)
	}
	return outputs{dir: dir, journal: filepath.Join(dir, "journal.jsonl")}, nil
}

// check refuses a call without experiments, and --resume with flags or experiments that would change the run.
func (f *studyFlags) check(cmd *cobra.Command) error {
	if f.resume == "" {
		if len(f.Names) == 0 {
			return refuse.Invalidf("which experiments? berth bench list shows them; all means every one")
		}
		return nil
	}
	for _, other := range []string{
		"budget", "margin", "pairs", "run", "warm", "sessions", "seed", "dir", "device", "destroy-data", "size", "peer", "network", "port", "machine", "out", "json",
	} {
		if cmd.Flags().Changed(other) {
			return refuse.Invalidf("--resume goes on with what was asked for then: --%s cannot change it", other)
		}
	}
	if len(f.Names) > 0 {
		return refuse.Invalidf("--resume goes on with what was asked for then: %s cannot change it", f.Names[0])
	}
	return nil
}

func (a App) run(cmd *cobra.Command, f *studyFlags) error {
	if err := f.check(cmd); err != nil {
		return err
	}
	if err := f.complete(); err != nil {
		return err
	}
	if f.machine != "" {
		f.Machine = &side.Guest{}
		if err := a.Machine(&f.Machine.Machine, f.machine, map[string]*string{"image": &f.Machine.Image}); err != nil {
			return err
		}
	}
	lab, err := a.lab()
	if err != nil {
		return err
	}
	out, err := f.outputs(time.Now())
	if err != nil {
		return err
	}
	study, err := a.watched(cmd, func(ctx context.Context, progress func(bed.Progress)) (*result.Study, error) {
		if f.resume != "" {
			return bench.Resume(ctx, lab, out.journal, progress)
		}
		return bench.Run(ctx, f.Options, lab, out.journal, progress)
	})
	if study == nil {
		return out.failed(err, f.resume != "")
	}
	return errors.Join(a.writeStudy(study, out), err)
}

// failed is the error of a run without results. What it has made goes; the trials of a run before stay.
func (o outputs) failed(err error, resumed bool) error {
	if resumed || errors.Is(err, bench.ErrThere) {
		return err
	}
	return errors.Join(err, o.discard())
}

// discard removes the journal and empty folders.
func (o outputs) discard() error {
	err := os.Remove(o.journal)
	if o.journal == "" || errors.Is(err, os.ErrNotExist) {
		err = nil
	}
	if o.dir != "" {
		_ = os.Remove(o.dir) // if it is empty
	}
	if o.temporary {
		_ = os.Remove(filepath.Dir(o.journal))
	}
	return err
}

// lab returns the functions by which experiments make nodes and networks of this Berth.
func (a App) lab() (bed.Lab, error) {
	self, err := os.Executable()
	if err != nil {
		return bed.Lab{}, fmt.Errorf("find this program: %w", err)
	}
	return a.labOf(a.Open(), self), nil
}

func (a App) labOf(b *node.Berth, self string) bed.Lab {
	lab := bed.Lab{
		Self: self, Root: b.Layout.Args(), Version: version.Berth, Folder: func(dir string) error { return nodes.CheckFolder(b.Layout, dir) },
		Mount:  func(ctx context.Context, m vnode.Mount) error { return nodes.CheckMount(ctx, b.Layout, m) },
		Subnet: nodes.FreeSubnet, At: func(root string) bed.Lab { return a.labOf(a.At(root), self) },
	}
	lab.Node = func(ctx context.Context, n *vnode.Node) (side.Arm, func(), error) {
		if err := a.Valid(n); err != nil {
			return nil, nil, err
		}
		return arm(ctx, b, n)
	}
	lab.Can = func(ctx context.Context, n *vnode.Node) error {
		if err := a.Valid(n); err != nil {
			return err
		}
		_, err := b.Plan(ctx, n)
		return err
	}
	lab.Set = func(ctx context.Context, name, key, value string) error {
		_, err := b.Set(ctx, name, []node.KeyValue{{Key: key, Value: value}})
		return err
	}
	lab.Network = func(ctx context.Context, o *wire.NetOptions, peer string, networks []string) ([]wire.NetArm, func(), error) {
		parsed, err := parseNetworks(peer, networks)
		if err != nil {
			return nil, nil, err
		}
		return nodes.Network(ctx, b.Layout, lab.Node, o, peer, parsed)
	}
	return lab
}

// arm is nodes.Arm with the result type that package bench wants.
func arm(ctx context.Context, b *node.Berth, n *vnode.Node) (side.Arm, func(), error) {
	run, done, err := nodes.Arm(ctx, b, n, false)
	return run, done, err
}

// writeStudy writes the report's files and prints its text.
func (a App) writeStudy(s *result.Study, out outputs) error {
	if out.json != "" {
		return a.writeOnlyJSON(s, out)
	}
	r, err := report.Of(s, "report")
	if err != nil {
		return err
	}
	var errs []error
	for _, file := range []struct {
		name  string
		write func(io.Writer) error
	}{{"report.json", s.JSON}, {"report.html", r.HTML}, {"report.csv", r.CSV}, {"report.txt", r.Text}} {
		if err := writeFile(filepath.Join(out.dir, file.name), file.write); err != nil {
			errs = append(errs, fmt.Errorf("write %s: %w", file.name, err))
		}
	}
	errs = append(errs, r.Text(a.Out))
	if len(errs) == 1 || errs[0] == nil {
		fmt.Fprintf(a.Err, "berth: the report is in %s: report.html\n", out.dir)
	}
	return errors.Join(errs...)
}

// writeOnlyJSON writes the JSON.
func (a App) writeOnlyJSON(s *result.Study, out outputs) error {
	var err error
	if out.json == "-" {
		err = s.JSON(a.Out)
	} else {
		err = writeFile(out.json, s.JSON)
	}
	if err != nil {
		return err
	}
	return out.written(s)
}

// written removes the journal once the JSON is written, unless the run can be resumed: it is partial.
func (o outputs) written(s *result.Study) error {
	if s.Partial && !o.temporary {
		return nil
	}
	return o.discard()
}
