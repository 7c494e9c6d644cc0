package act

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"berth/internal/node"
)

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
