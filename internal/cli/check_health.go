package cli

import (
	"fmt"
	"os"
	"time"

	"github.com/spf13/cobra"

	"berth/internal/node"
	"berth/internal/spec/vnode"
)

func (a *app) checkHealthCmd() *cobra.Command {
	return &cobra.Command{
		Use: "check-health NAME", Short: "run a node's health check (started by the keeper)", Hidden: true, Args: cobra.ExactArgs(1),
		Long:        "Run the health check of a node's spec. One that takes too long is killed, with all\nprocesses of its group. Started by the keeper; it changes no state. The exit code is the check's.",
		Example:     "  berth check-health wn-001",
		Annotations: map[string]string{"passes-exit-code": "yes"},
		RunE: func(cmd *cobra.Command, args []string) (err error) {
			null, err := os.Open(os.DevNull)
			if err != nil {
				return err
			}
			defer null.Close()
			b := a.open()
			n, err := b.Spec(args[0])
			if err != nil {
				return err
			}
			_, timeout, _ := n.Health.Times()
			began := time.Now()
			check := node.Inside{Args: n.Health.Command, Timeout: timeout}
			a.code, err = b.Exec(cmd.Context(), n.Name, check, node.RunIO{In: null, Out: os.Stdout, Err: os.Stderr})
			if a.code != 0 && err == nil && time.Since(began) >= timeout {
				fmt.Fprintf(a.Err, "killed after %s\n", vnode.Duration(timeout))
			}
			return err
		},
	}
}
