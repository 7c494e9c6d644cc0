package cli

import (
	"errors"
	"fmt"
	"os"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"golang.org/x/term"

	"berth/internal/node"
	"berth/internal/sys/refuse"
)

func (a *app) execCmd() *cobra.Command {
	var tty, in bool
	var f insideFlags
	c := &cobra.Command{
		Use: "exec [-it] NAME -- CMD ARG…", DisableFlagsInUseLine: true, Short: "run one more command in a running node",
		Long: `Run one more command in a running node, with the same user, environment, rights
and limits as the node's own. Standard input, output and error are passed on
through pipes, or with -t through a terminal of the node's own, and so are
signals. Words and variables that are not UTF-8 are refused: no OCI runtime
takes them. If berth exec itself is killed by SIGKILL, the command lives on: it
reads no more, and what it writes ends it. The exit code is the command's; 125
if Berth failed, 126 if the command could not be run, 127 if it was not found.`,
		Example:           "  berth exec wn-001 -- ps\n  berth exec -it wn-001 -- sh\n  berth exec -u postgres -w /tmp -e LANG=C.UTF-8 wn-001 -- psql -l",
		ValidArgsFunction: a.nodeNames(1),
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) < 1 || len(command(args[1:])) == 0 {
				return fmt.Errorf("want NAME -- CMD ARG…")
			}
			return nil
		},
		Annotations: map[string]string{"passes-exit-code": "yes"},
		RunE: func(cmd *cobra.Command, args []string) error {
			streams, err := a.runIO(tty)
			if err != nil {
				return err
			}
			env, err := f.variables()
			if err = errors.Join(err, f.check()); err != nil {
				return err
			}
			what := node.Inside{Args: command(args[1:]), User: f.user, Env: env.List(), Workdir: f.workdir}
			a.code, err = a.open().Exec(cmd.Context(), args[0], what, streams)
			return err
		},
	}
	c.Flags().SetInterspersed(false)
	f.add(c.Flags())
	terminalFlags(c.Flags(), &tty, &in)
	return c
}

// terminalFlags gives run and exec the flags that users of other engines type: -i, -t and -it.
func terminalFlags(fl *pflag.FlagSet, tty, in *bool) {
	fl.BoolVarP(tty, "tty", "t", false, "give the command a terminal")
	fl.BoolVarP(in, "interactive", "i", false, "accepted for habit's sake: standard input is always passed on")
}

// runIO returns the streams of a command in a node. It refuses -t if standard input is no terminal: the command's output
// would look different, and Ctrl-C would not reach the command.
func (a *app) runIO(tty bool) (node.RunIO, error) {
	if tty && !term.IsTerminal(int(a.In.Fd())) {
		return node.RunIO{}, refuse.Invalidf("-t: standard input is not a terminal; leave -t out")
	}
	return node.RunIO{In: a.In, Out: os.Stdout, Err: os.Stderr, TTY: tty}, nil
}

// command drops a leading "--" from args.
func command(args []string) []string {
	if len(args) > 0 && args[0] == "--" {
		return args[1:]
	}
	return args
}
