// Package cli is the program berth: its tree of commands (root.go), and the commands that have no package of their own. Each
// command prints text for people, and JSON for programs.
//
// Rules of output: data goes to stdout, everything else to stderr; progress only to a terminal; no colour.
package cli

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"berth/internal/bench/commands"
	"berth/internal/cli/act"
	"berth/internal/cli/instance"
	"berth/internal/cli/pools"
	"berth/internal/cli/site"
	"berth/internal/cli/sync"
	"berth/internal/runner"
	"berth/internal/sys/help"
	"berth/internal/sys/refuse"
	"berth/internal/sys/space"
	"berth/internal/sys/text"
	"berth/internal/sys/version"
)

// ownFailure is the exit code of run and exec when Berth itself fails, as in podman.
const ownFailure = 125

// Main runs one command line and returns its exit code.
func Main(ctx context.Context, args []string, s Streams) int {
	s.Out, s.Err = text.NewVisible(s.Out), text.NewVisible(s.Err)
	a := &app{Streams: s}
	root := a.command()
	if host, rest, ok := site.HostOf(args); ok {
		err := site.Remote(root, host, rest)
		help.PrintError(s.Err, err)
		return int(refuse.KindOf(err))
	}
	root.SetArgs(args)
	root.SetIn(s.In)
	root.SetOut(s.Out)
	root.SetErr(s.Err)
	cmd, err := root.ExecuteContextC(ctx)
	if err == nil {
		return a.code
	}
	dirs := a.layout()
	help.PrintError(s.Err, space.Name(err, dirs.Run, dirs.Lib))
	return exitCode(cmd, err)
}

func exitCode(cmd *cobra.Command, err error) int {
	passes := cmd.Annotations["passes-exit-code"] != ""
	var ce *runner.CommandError
	if errors.As(err, &ce) && passes {
		return ce.Code
	}
	if passes {
		return ownFailure
	}
	return int(refuse.KindOf(err))
}

// NewRoot returns the whole command tree, for man pages and completion.
func NewRoot() *cobra.Command {
	a := &app{Streams: Streams{In: os.Stdin, Out: os.Stdout, Err: os.Stderr}}
	return a.command()
}

func (a *app) command() *cobra.Command {
	root := &cobra.Command{
		Use:   "berth",
		Short: "virtual nodes on this host, each with its own identity and proved limits",
		Long: `Berth runs virtual nodes: containers that are machines of their own on the
network, with hard limits of CPU, memory and block I/O that are read back from
the kernel, and measures what a node costs against the bare host.

Exit codes: 0 done; 1 failed; 2 wrong usage or an invalid spec; 3 this host
cannot; 4 no such node, image or device; 5 it exists or is busy; 6 plan
--detailed-exitcode would change something. run and exec pass on the command's
own code; their own failures are 125 (Berth), 126 (the command cannot be run),
127 (it is not there).

make install puts man pages (man berth-run) and documents beside the program:
in /usr/local/share/doc/berth, if that is where it was installed.`,
		Example: `  berth doctor                          what this host can do
  berth run --image host -- hostname    a throw-away node
  berth apply -f node.yaml              make a node as its spec says
  berth show wn-001                     its limits, as the kernel has them`,
		Version:       version.Berth,
		SilenceUsage:  true,
		SilenceErrors: true,

		CompletionOptions:          cobra.CompletionOptions{DisableDefaultCmd: true},
		SuggestionsMinimumDistance: 2,
	}
	root.PersistentFlags().Var(&a.root, "root", "keep everything of its own under `DIR` instead of /run/berth and /var/lib/berth")
	_ = root.MarkPersistentFlagDirname("root") // fails only for an unknown flag
	root.PersistentFlags().Var(site.Host{}, "host", "run the command on another host, `NAME`[:PORT] or unix:SOCKET of its agent")
	root.SetFlagErrorFunc(help.FlagError)
	root.SetHelpFunc(func(c *cobra.Command, _ []string) { help.Write(a.Out, c) })
	root.SetUsageFunc(func(c *cobra.Command) error { help.WriteUsage(a.Out, c); return nil })
	help.AddGroups(root)
	acts := a.acts()
	root.AddCommand(help.Under("life",
		a.applyCmd(), a.runCmd(), a.execCmd(), a.cpCmd(), a.exportCmd(), a.setCmd(), a.startCmd(), a.stopCmd(),
		acts.Restart(), acts.Pause(), acts.Unpause(), acts.Kill(), a.rmCmd())...)
	root.AddCommand(help.Under("look", a.planCmd(), a.lsCmd(), a.showCmd(), a.topCmd(), acts.Logs(), acts.Events(), acts.Audit(), acts.Wait())...)
	root.AddCommand(help.Under("host",
		a.doctorCmd(), a.imageCmd(), a.vfCmd(), a.netCmd(), a.gatewayCmd(), a.benches().Command(), a.protectCmd(), a.unprotectCmd(), a.repairCmd(), a.schemaCmd(), a.completionCmd())...)
	root.AddCommand(help.Under("host", pools.Commands{App: acts}.Pool())...)
	root.AddCommand(help.Under("site", sync.Commands{App: acts}.Sync(), instance.Commands{App: acts}.Instance())...)
	root.AddCommand(help.Under("site", site.App{Layout: a.layout}.Commands()...)...)
	root.AddCommand(a.keeperCmd(), a.checkHealthCmd(), a.machineCmd(), a.copierCmd(), a.netserveCmd())
	root.SetHelpCommand(help.Command())
	root.InitDefaultHelpCmd()
	help.CheckArgs(root)
	root.RunE = func(*cobra.Command, []string) error { // Berth alone: how to begin
		_, err := fmt.Fprintln(a.Out, root.Example+"\n  berth --help                          all commands")
		return err
	}
	return root
}

// acts returns the commands of package act.
func (a *app) acts() act.App {
	return act.App{
		Out: a.Out, Err: a.Err, JSON: &a.json, Open: a.open, ToStart: a.openToStart, Attended: a.attended, Each: each, EachNode: a.eachNode,
		Names: func(most int, states ...string) cobra.CompletionFunc {
			return cobra.CompletionFunc(a.nodeNames(most, states...))
		},
		JSONFlag: a.jsonFlag, PrintJSON: a.printJSON, PrintLine: a.printLine,
	}
}

// benches returns the commands of package bench.
func (a *app) benches() commands.App {
	return commands.App{
		In: a.In, Out: a.Out, Err: a.Err, JSON: &a.json, Open: a.open, At: a.openAt, Valid: valid, Machine: machineParts, OnTerminal: a.onTerminal,
		JSONFlag: a.jsonFlag, PrintJSON: a.printJSON,
	}
}
