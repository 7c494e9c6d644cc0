package cli

import (
	"context"

	"github.com/spf13/cobra"

	"berth/internal/cli/show"
	"berth/internal/node"
	"berth/internal/sys/refuse"
	"berth/internal/sys/text"
)

func (a *app) planCmd() *cobra.Command {
	var files []string
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
			b, all, err := a.proposals(cmd.Context(), files, args)
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
	specFlag(c, &files)
	c.Flags().BoolVar(&detailed, "detailed-exitcode", false, "exit 6 if something would change")
	return a.jsonFlag(c)
}

// proposals plans what apply would do with the nodes of files, or set with the node and the changes that args name.
func (a *app) proposals(ctx context.Context, files []string, args []string) (*node.Berth, []*node.Proposal, error) {
	switch {
	case len(args) > 0 && len(files) > 0:
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
	nodes, b, err := a.specsAndBerth(ctx, files)
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
