package cli

import (
	"fmt"

	"github.com/spf13/cobra"

	"berth/internal/node"
	"berth/internal/refuse"
	"berth/internal/vnode"
)

func (a *app) applyCmd() *cobra.Command {
	var file string
	var restart bool
	c := &cobra.Command{
		Use: "apply -f FILE", Short: "make nodes as a spec says",
		Long: `Make the nodes of a spec: create and start what is not there, start what is stopped,
change live what can change live. It says unchanged, changed, created, started, restarted,
or names what needs a restart (exit 5; --restart allows it).`,
		Example: "  berth apply -f node.yaml\n  berth apply -f node.yaml --restart",
		RunE: func(cmd *cobra.Command, _ []string) error {
			nodes, b, err := a.specsAndBerth(file)
			if err != nil {
				return err
			}
			var all []*node.Outcome
			failed := each(byName(nodes), func(name string) error {
				o, err := b.Apply(cmd.Context(), find(nodes, name), restart)
				if err != nil {
					return err
				}
				all = append(all, o)
				if !a.json {
					a.printOutcome(o)
				}
				return nil
			})
			if a.json {
				if err := a.printJSON(all); err != nil {
					return err
				}
			}
			return failed
		},
	}
	c.Flags().StringVarP(&file, "file", "f", "", "the spec, YAML; - is standard input")
	c.Flags().BoolVar(&restart, "restart", false, "restart a running node if a change needs it")
	return a.jsonFlag(c)
}

func (a *app) printOutcome(o *node.Outcome) {
	fmt.Fprintf(a.Out, "%s %s\n", o.Node, o.Did)
	for _, d := range o.Changes {
		fmt.Fprintf(a.Out, "  %s\n", difference(d))
	}
}

func difference(d vnode.Difference) string {
	return fmt.Sprintf("%s: %s → %s", d.Key, orNone(d.Old), orNone(d.New))
}

func orNone(s string) string {
	if s == "" {
		return "(none)"
	}
	return s
}

func (a *app) planCmd() *cobra.Command {
	var file string
	var detailed bool
	c := &cobra.Command{
		Use: "plan -f FILE", Short: "show what apply would do; change nothing",
		Long: `Show the steps that apply would take, in order, and what was changed live since the last
apply. Nothing is changed. With --detailed-exitcode the exit code is 6 if apply would
change something, and 0 if not.`,
		Example: "  berth plan -f node.yaml\n  berth plan -f node.yaml --json",
		RunE: func(cmd *cobra.Command, _ []string) error {
			nodes, b, err := a.specsAndBerth(file)
			if err != nil {
				return err
			}
			var all []*node.Proposal
			for _, n := range nodes {
				p, err := b.Plan(cmd.Context(), n)
				if err != nil {
					return err
				}
				all = append(all, p)
				if detailed && p.Changes() {
					a.code = int(refuse.Differs)
				}
				if !a.json {
					a.printProposal(p)
				}
			}
			if a.json {
				return a.printJSON(all)
			}
			return nil
		},
	}
	c.Flags().StringVarP(&file, "file", "f", "", "the spec, YAML; - is standard input")
	c.Flags().BoolVar(&detailed, "detailed-exitcode", false, "exit 6 if apply would change something")
	return a.jsonFlag(c)
}

func (a *app) printProposal(p *node.Proposal) {
	fmt.Fprintf(a.Out, "%s: %s\n", p.Node, p.Summary())
	for _, d := range p.Drift {
		fmt.Fprintf(a.Out, "  changed live since: %s\n", difference(d))
	}
	for _, d := range p.Differences {
		fmt.Fprintf(a.Out, "  %s%s\n", difference(d), word(d.Live, "", "  (needs a restart)"))
	}
	for i, s := range p.Steps {
		fmt.Fprintf(a.Out, "%4d  %-16s %s\n", i+1, s.Kind, s.Text)
	}
}

// specsAndBerth reads the file that -f names, and opens the place where nodes are kept.
func (a *app) specsAndBerth(file string) ([]*vnode.Node, *node.Berth, error) {
	if file == "" {
		return nil, nil, refuse.Invalidf("no spec given: -f FILE")
	}
	nodes, err := a.readSpecs(file)
	if err != nil {
		return nil, nil, err
	}
	b, err := a.open()
	return nodes, b, err
}

func byName(nodes []*vnode.Node) []string {
	names := make([]string, len(nodes))
	for i, n := range nodes {
		names[i] = n.Name
	}
	return names
}

func find(nodes []*vnode.Node, name string) *vnode.Node {
	for _, n := range nodes {
		if n.Name == name {
			return n
		}
	}
	return nil
}
