// Package act is the commands restart, pause, unpause, kill and wait, and those that print what nodes wrote (logs), what happened
// to them (events) and what the agent was asked for (audit).
package act

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"berth/internal/node"
	"berth/internal/sys/proc"
	"berth/internal/sys/refuse"
	"berth/internal/sys/text"
)

// App has what the commands share with the rest of the command line.
type App struct {
	Out, Err  io.Writer
	JSON      *bool // --json
	Open      func() *node.Berth
	ToStart   func() (*node.Berth, error)
	Attended  func(context.Context) *node.Berth
	Names     func(most int, states ...string) cobra.CompletionFunc
	Each      func(names []string, do func(string) error) error
	JSONFlag  func(*cobra.Command) *cobra.Command
	PrintJSON func(any) error
	PrintLine func(any) error
}

// Restart returns the command berth restart.
func (a App) Restart() *cobra.Command {
	grace := node.OwnGrace
	c := &cobra.Command{
		Use: "restart NAME…", Short: "stop nodes and start them again", Args: cobra.MinimumNArgs(1),
		Long: `Stop nodes as berth stop does, and start them again as their specs say now: with
the same MACs, the same id range, and what they wrote. A node that does not run
is started. What this host would refuse to start is not stopped (exit 3). If
the command is killed in between, the node is stopped.`,
		Example:           "  berth restart wn-001\n  berth restart --grace 60s wn-001 wn-002",
		ValidArgsFunction: a.Names(0),
		RunE: func(cmd *cobra.Command, names []string) error {
			b, err := a.ToStart()
			if err != nil {
				return err
			}
			return a.Each(names, func(name string) error {
				wasUp, err := b.Restart(cmd.Context(), name, grace)
				if err == nil {
					fmt.Fprintf(a.Out, "%s %s\n", name, text.Either(wasUp, "restarted", "started"))
				}
				return err
			})
		},
	}
	GraceFlag(c, &grace)
	return c
}

// GraceFlag adds the flag --grace. Without it grace stays node.OwnGrace.
func GraceFlag(c *cobra.Command, grace *time.Duration) {
	own := *grace
	c.Flags().DurationVar(grace, "grace", 0, "`TIME` to wait before everything is killed (default: stop.grace of the spec, else 10s)")
	*grace = own
}

// Pause returns the command berth pause.
func (a App) Pause() *cobra.Command {
	return &cobra.Command{
		Use: "pause NAME…", Short: "hold running nodes where they are", Args: cobra.MinimumNArgs(1),
		Long: `Stop every process of running nodes where it is, with the kernel's freezer:
they use no CPU, and keep their memory, their connections and their limits. A
paused node takes no new command (exit 5); berth set, stop, kill and rm work.`,
		Example:           "  berth pause wn-001\n  berth unpause wn-001",
		ValidArgsFunction: a.Names(0, node.Running),
		RunE: func(cmd *cobra.Command, names []string) error {
			return a.change(cmd.Context(), names, (*node.Berth).Pause, "paused", "was paused already")
		},
	}
}

// Unpause returns the command berth unpause.
func (a App) Unpause() *cobra.Command {
	return &cobra.Command{
		Use: "unpause NAME…", Short: "let paused nodes go on", Args: cobra.MinimumNArgs(1),
		Long:              "Let paused nodes go on where they were held.",
		Example:           "  berth unpause wn-001 wn-002",
		ValidArgsFunction: a.Names(0, node.Paused),
		RunE: func(cmd *cobra.Command, names []string) error {
			return a.change(cmd.Context(), names, (*node.Berth).Unpause, "goes on", "was not paused")
		},
	}
}

// change does something to each node, and says what: did if that changed it, else not.
func (a App) change(ctx context.Context, names []string, do func(*node.Berth, context.Context, string) (bool, error), did, not string) error {
	b := a.Open()
	return a.Each(names, func(name string) error {
		changed, err := do(b, ctx, name)
		if err == nil {
			fmt.Fprintf(a.Out, "%s %s\n", name, text.Either(changed, did, not))
		}
		return err
	})
}

// Kill returns the command berth kill.
func (a App) Kill() *cobra.Command {
	name := "KILL"
	c := &cobra.Command{
		Use: "kill NAME…", Short: "send a signal to process 1 of nodes", Args: cobra.MinimumNArgs(1),
		Long: `Send a signal to process 1 of running nodes: SIGKILL, which ends the node, or
the one that --signal names. A process 1 without a handler for a signal does
not get it from the kernel, and that is said (exit 1). A paused node ends by
SIGKILL at once, and gets any other signal when it goes on. How the node ended
decides about its restart policy, as always; berth stop ends it for good.`,
		Example:           "  berth kill wn-001\n  berth kill -s HUP web\n  berth exec wn-001 -- kill -TERM -1    to all of its other processes",
		ValidArgsFunction: a.Names(0, node.Running, node.Paused),
		RunE: func(cmd *cobra.Command, names []string) error {
			sig, err := proc.ParseSignal(name)
			if err != nil {
				return refuse.Invalidf("--signal: %w", err)
			}
			b := a.Open()
			return a.Each(names, func(name string) error {
				later, err := b.Kill(cmd.Context(), name, sig)
				if err == nil {
					fmt.Fprintf(a.Out, "%s %s %s\n", name, text.Either(later, "is paused, and gets when it goes on", "got"), proc.SignalText(sig))
				}
				return err
			})
		},
	}
	c.Flags().StringVarP(&name, "signal", "s", name, "`SIGNAL` by name or number: TERM, SIGHUP, 9, RTMIN+3")
	_ = c.RegisterFlagCompletionFunc("signal", signals) // fails only for an unknown flag
	return c
}

// signals offers the signals that are sent by hand.
func signals(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
	return []string{"HUP", "INT", "QUIT", "KILL", "USR1", "USR2", "TERM", "CONT", "STOP", "WINCH"}, cobra.ShellCompDirectiveNoFileComp
}

// waited is what berth wait tells of one node.
type waited struct {
	Node string `json:"node"`
	*node.Exit
}

// Wait returns the command berth wait.
func (a App) Wait() *cobra.Command {
	var most time.Duration
	c := &cobra.Command{
		Use: "wait NAME…", Short: "wait until nodes have ended, and print their exit codes", Args: cobra.MinimumNArgs(1),
		Long: `Wait until process 1 of each node has ended, and print its exit code: 128 + the
signal's number where a signal ended it, 255 where nobody knows. The codes are
printed in the order of the names, each as soon as it and those before it are
known. A node that does not run counts at once, with its last code. A restart
by the policy is not waited for. The exit code of berth wait is 0 whatever
these codes are, 1 if --timeout is over.`,
		Example:           "  berth wait job-1 job-2\n  berth wait --timeout 10m job-1",
		ValidArgsFunction: a.Names(0, node.Running, node.Paused),
		RunE: func(cmd *cobra.Command, names []string) error {
			return a.wait(cmd.Context(), a.Attended(cmd.Context()), names, most)
		},
	}
	c.Flags().DurationVar(&most, "timeout", 0, "`TIME` to wait at most")
	return a.JSONFlag(c)
}

func (a App) wait(ctx context.Context, b *node.Berth, names []string, most time.Duration) error {
	if most > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, most)
		defer cancel()
	}
	type end struct {
		exit *node.Exit
		err  error
	}
	ends := make([]chan end, len(names))
	var wg sync.WaitGroup
	defer wg.Wait()
	for i, name := range names { // all at once: a node may end and be started again while another one is waited for
		ends[i] = make(chan end, 1)
		wg.Go(func() {
			exit, err := b.Wait(ctx, name)
			if most > 0 && errors.Is(err, context.DeadlineExceeded) {
				err = fmt.Errorf("node %s still runs after %s", name, most)
			}
			ends[i] <- end{exit, err}
		})
	}
	var all []waited
	var errs []error
	for i, name := range names {
		e := <-ends[i]
		if e.err != nil {
			errs = append(errs, e.err)
			continue
		}
		all = append(all, waited{name, e.exit})
		if !*a.JSON {
			fmt.Fprintln(a.Out, e.exit.Code)
			if e.exit.Unknown {
				fmt.Fprintf(a.Err, "berth: node %s: nobody saw how it ended\n", name)
			}
		}
	}
	if *a.JSON {
		errs = append(errs, a.PrintJSON(all))
	}
	return errors.Join(errs...)
}
