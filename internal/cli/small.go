package cli

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"berth/internal/network/netserve"
	"berth/internal/node"
	"berth/internal/node/autostart"
	"berth/internal/spec"
	"berth/internal/spec/vnode"
)

func (a *app) schemaCmd() *cobra.Command {
	return &cobra.Command{
		Use: "schema", Short: "print the JSON Schema of a spec",
		Long: `Print the JSON Schema of a spec, for editors that complete and check YAML. It
knows every key, its type and what is allowed; berth plan says what this host
can do.`,
		Example: "  berth schema > berth.schema.json",
		RunE: func(*cobra.Command, []string) error {
			s, err := spec.Schema()
			if err != nil {
				return err
			}
			_, err = a.Out.Write(s)
			return err
		},
	}
}

func (a *app) repairCmd() *cobra.Command {
	c := &cobra.Command{
		Use: "repair", Short: "undo what killed commands left",
		Long: `Undo what killed commands left: a creation that was interrupted is rolled back,
a removal is finished, a set ends at the old or the new value, a node whose
process 1 ended unseen is cleaned up, and the keeper is started again. It waits
for commands that are at work.`,
		Example: "  berth repair",
		RunE: func(cmd *cobra.Command, _ []string) error {
			b := a.open()
			did, err := b.Repair(cmd.Context())
			err = errors.Join(err, autostart.Settle(b))
			if a.json {
				if perr := a.printJSON(did); perr != nil {
					return perr
				}
				return err
			}
			for _, d := range did {
				fmt.Fprintln(a.Out, strings.TrimSpace(d.Node+" "+d.Did))
			}
			if len(did) == 0 && err == nil {
				fmt.Fprintln(a.Out, "nothing to repair")
			}
			return err
		},
	}
	return a.jsonFlag(c)
}

func (a *app) keeperCmd() *cobra.Command {
	var upgrade bool
	given := -1
	c := &cobra.Command{
		Use: "keeper", Short: "watch the nodes of this host (started by the other commands)", Hidden: true,
		Long: "Started by the first node and gone with the last: it brings links home, writes exit\nstatus and restarts nodes. No need to call it.",
		RunE: func(cmd *cobra.Command, _ []string) error {
			b := a.open()
			if upgrade {
				runs, err := b.UpgradeKeeper(cmd.Context())
				if err == nil && !runs {
					fmt.Fprintln(a.Err, "no keeper runs")
				}
				return err
			}
			var ready *os.File // only the command that starts a keeper waits for it
			if given < 0 {
				ready = os.NewFile(3, "ready")
			}
			return b.Keep(cmd.Context(), ready, given)
		},
	}
	c.Flags().BoolVar(&upgrade, "upgrade", false, "make the keeper that runs become this program: same process, same nodes")
	c.Flags().IntVar(&given, "given", -1, "descriptor of what the keeper's older program left")
	_ = c.Flags().MarkHidden("given")
	return c
}

func (a *app) netserveCmd() *cobra.Command {
	return &cobra.Command{
		Use: "netserve SOCKET", Args: cobra.ExactArgs(1), Short: "answer names of nodes, relay the loopback's ports (started by the nodes)", Hidden: true,
		Long: "Started by the first node of mode nat and gone with the last. No need to call it.",
		RunE: func(cmd *cobra.Command, _ []string) error { return netserve.Run(cmd.Context(), 3) },
	}
}

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
