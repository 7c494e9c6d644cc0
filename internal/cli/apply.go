package cli

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"berth/internal/cli/images"
	"berth/internal/cli/show"
	"berth/internal/image"
	"berth/internal/node"
	"berth/internal/node/autostart"
	"berth/internal/spec/vnode"
	"berth/internal/sys/refuse"
	"berth/internal/sys/text"
)

func (a *app) applyCmd() *cobra.Command {
	var file string
	var restart, trust bool
	c := &cobra.Command{
		Use: "apply -f FILE", Short: "make nodes as a spec says",
		Long: `Make the nodes of a spec: create and start what is not there, start what is
stopped, change live what can change live. It says unchanged, changed, created,
started, restarted, or names what needs a restart (exit 5; --restart allows
it). A file may hold several nodes, parted by ---; each is done, whatever
becomes of the others.`,
		Example: "  berth apply -f node.yaml\n  berth apply -f node.yaml --restart",
		RunE: func(cmd *cobra.Command, _ []string) error {
			nodes, b, err := a.specsAndBerth(cmd.Context(), file)
			if err != nil {
				return err
			}
			all := []*node.Outcome{}
			failed := each(byName(nodes), func(name string) error {
				n := find(nodes, name)
				if trust {
					if err := images.TrustAll(cmd.Context(), image.Open(a.layout()), n); err != nil {
						return err
					}
				}
				o, err := b.Apply(cmd.Context(), n, restart)
				if err != nil {
					return err
				}
				all = append(all, o)
				if !a.json {
					show.Outcome(a.Out, o)
				}
				return nil
			})
			if a.json {
				if err := a.printJSON(all); err != nil {
					return err
				}
			}
			return errors.Join(failed, a.toBoot(nodes))
		},
	}
	specFlag(c, &file)
	c.Flags().BoolVar(&restart, "restart", false, "restart a running node if a change needs it")
	images.TrustFlag(c, &trust)
	return a.jsonFlag(c)
}

// toBoot arranges that those nodes start with the host whose specs say so.
func (a *app) toBoot(nodes []*vnode.Node) error {
	note, err := autostart.Applied(a.layout(), nodes)
	if note != "" {
		fmt.Fprintln(a.Err, "berth: "+note)
	}
	return err
}

func (a *app) planCmd() *cobra.Command {
	var file string
	var detailed bool
	c := &cobra.Command{
		Use: "plan -f FILE|NAME [KEY=VALUE…]", Short: "show what apply or set would do; change nothing", Args: cobra.ArbitraryArgs,
		Long: `Show the steps that berth apply -f FILE would take, in order, and what was
changed live since the last apply; or the steps of berth set NAME KEY=VALUE….
With NAME alone: how a running node would follow devices and disks that came or
went, as the keeper and berth repair do. Nothing is changed. What the command
would refuse is refused. With --detailed-exitcode the exit code is 6 if
something would change, and 0 if not.`,
		ValidArgsFunction: a.setKeys,
		Example: `  berth plan -f node.yaml
  berth plan -f node.yaml --json
  berth plan wn-001 cpu.max=1.5 io.data.read.rate=25MB/s`,
		RunE: func(cmd *cobra.Command, args []string) error {
			b, all, err := a.proposals(cmd.Context(), file, args)
			if err != nil {
				return err
			}
			for _, p := range all {
				if detailed && p.Changes() {
					a.code = int(refuse.Differs)
				}
				if !a.json {
					show.Proposal(a.Out, text.Columns(a.Out), p, b.Layout.Node(p.Node))
				}
			}
			if a.json {
				return a.printJSON(all)
			}
			return nil
		},
	}
	specFlag(c, &file)
	c.Flags().BoolVar(&detailed, "detailed-exitcode", false, "exit 6 if something would change")
	return a.jsonFlag(c)
}

// proposals plans what apply would do with the nodes of a file, or set with the node and the changes that args name.
func (a *app) proposals(ctx context.Context, file string, args []string) (*node.Berth, []*node.Proposal, error) {
	switch {
	case len(args) > 0 && file != "":
		return nil, nil, refuse.Invalidf("-f FILE and NAME are for different plans: give one of them")
	case len(args) > 0:
		b := a.open()
		changes, err := keyValues(args[1:])
		if err != nil {
			return nil, nil, err
		}
		p, err := b.PlanSet(ctx, args[0], changes)
		return b, []*node.Proposal{p}, err
	}
	nodes, b, err := a.specsAndBerth(ctx, file)
	if err != nil {
		return nil, nil, err
	}
	var all []*node.Proposal
	for _, n := range nodes {
		p, err := b.Plan(ctx, n)
		if err != nil {
			return nil, nil, err
		}
		all = append(all, p)
	}
	return b, all, nil
}
