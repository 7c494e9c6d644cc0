package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"berth/internal/bench"
	"berth/internal/host"
	"berth/internal/node"
	"berth/internal/refuse"
	"berth/internal/vnode"
)

// explainFlags are the flags of berth bench explain.
type explainFlags struct {
	bench.Options
	from, size, jsonFile string
	jobs                 []int
	only                 []string
	schedulers           bool
}

func (a *app) benchExplainCmd() *cobra.Command {
	var f explainFlags
	c := &cobra.Command{
		Use: "explain [ROW]", Short: "which ingredient of a node carries the loss of a row",
		Args: cobra.MaximumNArgs(1),
		Long: `Run one row again while one ingredient at a time is changed, all of them in
random alternating order, and say which carries the loss, each with a 95 %
interval and corrected for how many there are. ROW is its name in a report,
such as "read 32K x512"; with --from and without ROW it is the one that lost
most of those judged worse.

Tried are nodes that lack something (user-namespace, seccomp, root), nodes that
have their data elsewhere (overlay), the host in cgroups (cgroup:NAME each,
cgroups all, cgroup-depth nested ones), and what both have in common: jobs:N,
cpu-placement, preconditioning, scheduler:NAME, and the order of trials. What
cannot be tried here is named in the report.

For user-namespace and seccomp there are, as long as it runs, nodes without
them, in which nothing but fio runs. --schedulers changes the I/O scheduler of
the disk of --device; it is put back, also after a kill.`,
		Example: `  berth bench explain "read 32K x512" --dir /srv/data
  berth bench explain --from result.json
  berth bench explain "write 64K x1" --only seccomp,cgroup,overlay
  berth bench explain "read 64K x64" --device /dev/nvme1n1 --schedulers`,
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.benchExplain(cmd, &f, strings.Join(args, ""))
		},
	}
	fl := c.Flags()
	fl.StringVar(&f.from, "from", "", "take the row, the disk and the length of trials from this report, a JSON `FILE`")
	fl.StringVar(&f.Dir, "dir", "", "`FOLDER` whose file system is measured (default /var/tmp)")
	fl.StringVar(&f.Device, "device", "", "block `DEVICE` to measure instead; only read, unless --destroy-data")
	fl.BoolVar(&f.DestroyData, "destroy-data", false, "write to --device: what is on it is lost")
	fl.BoolVar(&f.schedulers, "schedulers", false, "try other I/O schedulers on the disk of --device")
	fl.IntSliceVar(&f.jobs, "jobs", nil, "other numbers `N,…` of threads to try (default 1 and 16 a core)")
	fl.StringSliceVar(&f.only, "only", nil, "try only these `NAMES`; cgroup, jobs and scheduler mean all of theirs")
	fl.StringVar(&f.size, "size", "", "how much of the disk is used, a `SIZE` (default 256MiB)")
	fl.DurationVar(&f.Run, "run", 0, "length of one trial, a `TIME` (default 300ms)")
	fl.DurationVar(&f.Warm, "warm", 0, "warm-up of a trial, a `TIME` (default 100ms)")
	fl.IntVar(&f.Pairs, "pairs", 0, "`N` pairs (default: as many as fit into the time)")
	fl.DurationVar(&f.Budget, "budget", 5*time.Minute, "`TIME` for everything")
	fl.Float64Var(&f.MarginPct, "margin", 0, "largest loss that counts as none, in `PERCENT` (default 10)")
	fl.Uint64Var(&f.Seed, "seed", 0, "`SEED` of the order of trials (default: a random one, reported)")
	fl.StringVar(&f.jsonFile, "json", "", "write every trial to `FILE` as JSON; - is standard output")
	return c
}

// row returns the row to measure, and takes flags that were not given from the report of --from.
func (f *explainFlags) row(name string) (bench.Row, error) {
	f.Quick = true // for its defaults: many short trials
	if f.size != "" {
		size, err := vnode.ParseBytes(f.size)
		if err != nil {
			return bench.Row{}, refuse.Invalidf("--size: %w", err)
		}
		f.Size = int64(size)
	}
	if f.Device != "" && f.Dir != "" {
		return bench.Row{}, refuse.Invalidf("--dir and --device exclude each other")
	}
	if f.from == "" {
		if name == "" {
			return bench.Row{}, refuse.Invalidf("which row? Give its name, for example %q, or a report with --from", "read 32K x512")
		}
		if f.Dir == "" && f.Device == "" {
			f.Dir = "/var/tmp"
		}
		return bench.ParseRow(name)
	}
	all, err := bench.ReadJudged(f.from)
	if err != nil {
		return bench.Row{}, err
	}
	j, err := bench.Choose(all, name)
	if err != nil {
		return bench.Row{}, err
	}
	if f.Dir == "" && f.Device == "" {
		if f.Dir = j.Target.Folder(); f.Dir == "" {
			f.Device = j.Target.Path
		}
	}
	keep(&f.Size, j.Target.Size)
	keep(&f.Run, j.Run)
	keep(&f.Warm, j.Warm)
	keep(&f.MarginPct, j.MarginPct)
	return j.Row, nil
}

// keep sets *v to found if *v was not given.
func keep[T comparable](v *T, found T) {
	var zero T
	if *v == zero {
		*v = found
	}
}

func (a *app) benchExplain(cmd *cobra.Command, f *explainFlags, name string) (err error) {
	row, err := f.row(name)
	if err != nil {
		return err
	}
	if f.Dir != "" {
		if f.Dir, err = filepath.Abs(f.Dir); err != nil {
			return err
		}
	}
	f.Rows = []bench.Row{row}
	if err := f.Complete(); err != nil {
		return err
	}
	b, err := a.open()
	if err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(cmd.Context(), syscall.SIGHUP)
	defer stop()
	x := explaining{b: b, f: f}
	defer func() { err = errors.Join(err, x.close()) }()
	if err := x.prepare(ctx, row); err != nil {
		return err
	}
	var progress func(bench.Progress)
	end := func() {}
	if a.onTerminal() {
		progress, end = bench.Bar(a.Err)
	}
	report, err := bench.Explain(ctx, f.Options, x.arms, x.lineup, progress)
	end()
	if report == nil {
		return err
	}
	return errors.Join(a.writeReport(report, f.jsonFile), err)
}

// explaining holds the nodes, cgroups and arms of one run, and how to remove them.
type explaining struct {
	b      *node.Berth
	f      *explainFlags
	arms   bench.Arms
	lineup bench.Lineup
	undo   []func() error
}

func (x *explaining) close() error {
	var err error
	for _, u := range slices.Backward(x.undo) {
		err = errors.Join(err, u())
	}
	return err
}

func (x *explaining) prepare(ctx context.Context, row bench.Row) error {
	base := node.BenchNode(x.f.Dir, x.f.Device, x.f.DestroyData)
	inNode, err := x.node(ctx, base, "", false)
	if err != nil {
		return err
	}
	x.f.Options.Node = base
	t := bench.Trying{
		Row: row, Device: x.f.Device, Writes: x.f.Device == "" || x.f.DestroyData, Cores: runtime.NumCPU(),
		Jobs: x.f.jobs, Schedulers: x.f.schedulers, Only: x.f.only, Node: inNode,
	}
	if err := x.nodes(ctx, t); err != nil {
		return err
	}
	groups, err := host.ReadCgroups("/proc")
	if err != nil {
		return err
	}
	if err := x.keep(x.lineup.Groups(t, groups, os.Getpid())); err != nil {
		return err
	}
	if err := x.keep(x.lineup.Settings(t)); err != nil { // last: it fixes the scheduler for all arms
		return err
	}
	x.arms = x.lineup.AsItIs(bench.Arms{Host: bench.Host, Node: inNode, Null: bench.Host})
	return x.lineup.Check(t)
}

func (x *explaining) keep(undo func() error, err error) error {
	if undo != nil {
		x.undo = append(x.undo, undo)
	}
	return err
}

// node makes a node, appends variant to its name, and returns its arm.
func (x *explaining) node(ctx context.Context, n *vnode.Node, variant string, unfiltered bool) (bench.Arm, error) {
	n.Name += variant
	n.Hostname = ""
	vnode.Defaults(n)
	if err := valid(n); err != nil {
		return nil, err
	}
	make := x.b.BenchArm
	if unfiltered {
		make = x.b.BenchArmUnfiltered
	}
	arm, done, err := make(ctx, n)
	if err != nil {
		return nil, err
	}
	x.undo = append(x.undo, func() error { done(); return nil })
	return arm, nil
}

// nodes adds the nodes that differ in one ingredient. The report names those that this host cannot make.
func (x *explaining) nodes(ctx context.Context, t bench.Trying) error {
	fresh := func() *vnode.Node { return node.BenchNode(x.f.Dir, x.f.Device, x.f.DestroyData) }
	if t.Wants("seccomp") {
		if arm, err := x.node(ctx, fresh(), "-unfiltered", true); err != nil {
			x.lineup.LeftOut("seccomp", err)
		} else {
			x.lineup.Lacks("seccomp", "the node without its filter of system calls, against the node", arm, "")
		}
	}
	if !t.Wants("user-namespace") && !t.Wants("root") && !t.Wants("overlay") {
		return nil
	}
	root, err := x.plainRoot()
	if err != nil {
		return err
	}
	// plain gives a node a root folder on an overlay; image host has links and mounts instead.
	plain := func(n *vnode.Node) *vnode.Node {
		n.Image = vnode.Image{Kind: vnode.DirImage, Ref: root}
		n.Mounts = append(n.Mounts, vnode.Mount{Source: "/usr", Target: "/usr", ReadOnly: true, Map: vnode.Identity})
		return n
	}
	if t.Wants("overlay") {
		if err := x.overlay(ctx, plain(node.BenchNode("", "", false))); err != nil {
			x.lineup.LeftOut("overlay", err)
		}
	}
	if t.Wants("user-namespace") || t.Wants("root") {
		if err := x.noUserNS(ctx, plain(fresh()), plain(fresh())); err != nil {
			x.lineup.LeftOut("user-namespace", err)
		}
	}
	return ctx.Err()
}

// noUserNS adds two nodes on the plain root: one with and one without a user namespace. Image host refuses the latter.
func (x *explaining) noUserNS(ctx context.Context, with, without *vnode.Node) error {
	rooted, err := x.node(ctx, with, "-plain", false)
	if err != nil {
		return err
	}
	x.lineup.Lacks("root", "a node whose root is an overlay, against the node, whose root (image host) is none", rooted, "")
	no := false
	without.UserNamespace = &no
	arm, err := x.node(ctx, without, "-no-userns", false)
	if err != nil {
		return err
	}
	x.lineup.Lacks("user-namespace", "a node without user namespace and without mapping of ids, against the same with them", arm, "node without root")
	return nil
}

// plainRoot makes a root folder for nodes, with links into /usr.
func (x *explaining) plainRoot() (string, error) {
	dir, err := os.MkdirTemp("", "berth-root-")
	if err != nil {
		return "", fmt.Errorf("make a root for nodes: %w", err)
	}
	x.undo = append(x.undo, func() error { return os.RemoveAll(dir) })
	if err := linkUsr(dir); err != nil {
		return "", fmt.Errorf("make a root for nodes: %w", err)
	}
	return dir, nil
}

// linkUsr makes the host's links into /usr (/bin, /lib and so on) in dir, and the folders that a root needs.
func linkUsr(dir string) error {
	if err := os.Chmod(dir, 0o755); err != nil {
		return err
	}
	for _, name := range []string{"bin", "sbin", "lib", "lib32", "lib64", "libx32"} {
		if to, err := os.Readlink("/" + name); err == nil {
			if err := os.Symlink(to, filepath.Join(dir, name)); err != nil {
				return err
			}
		}
	}
	for _, name := range []string{"usr", "tmp", "dev", "proc", "sys", "etc"} {
		if err := os.Mkdir(filepath.Join(dir, name), 0o755); err != nil {
			return err
		}
	}
	return nil
}

// overlay adds a node that measures a file on its own overlay. It fails if the overlay is not on the measured disk.
func (x *explaining) overlay(ctx context.Context, n *vnode.Node) error {
	if x.f.Dir == "" {
		return errors.New("a device is measured, no file")
	}
	arm, err := x.node(ctx, n, "-overlay", false)
	if err != nil {
		return err
	}
	path, err := bench.LayOutBeside(ctx, x.f.Options, x.b.BenchUpper(n.Name))
	if err != nil {
		return err
	}
	x.lineup.Overlay(bench.OnFile(arm, "/"+filepath.Base(path)), bench.OnFile(bench.Host, path))
	return nil
}
