package cli

import (
	"context"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"berth/internal/layout"
	"berth/internal/node"
	"berth/internal/refuse"
	"berth/internal/vnode"
)

func (a *app) applyCmd() *cobra.Command {
	var file string
	var restart bool
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
				o, err := b.Apply(cmd.Context(), find(nodes, name), restart)
				if err != nil {
					return err
				}
				all = append(all, o)
				if !a.json {
					printOutcome(a.Out, o)
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
	specFlag(c, &file)
	c.Flags().BoolVar(&restart, "restart", false, "restart a running node if a change needs it")
	return a.jsonFlag(c)
}

func printOutcome(w io.Writer, o *node.Outcome) {
	fmt.Fprintf(w, "%s %s\n", o.Node, o.Did)
	for _, d := range vnode.ByEntry(o.Changes) {
		fmt.Fprintf(w, "    %s\n", difference(d))
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
		Long: `Show the steps that apply would take, in order, and what was changed live since
the last apply. Nothing is changed. With --detailed-exitcode the exit code is 6
if apply would change something, and 0 if not.`,
		Example: "  berth plan -f node.yaml\n  berth plan -f node.yaml --json",
		RunE: func(cmd *cobra.Command, _ []string) error {
			nodes, b, err := a.specsAndBerth(cmd.Context(), file)
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
					printProposal(a.Out, columns(a.Out), p, b.Layout.Node(p.Node))
				}
			}
			if a.json {
				return a.printJSON(all)
			}
			return nil
		},
	}
	specFlag(c, &file)
	c.Flags().BoolVar(&detailed, "detailed-exitcode", false, "exit 6 if apply would change something")
	return a.jsonFlag(c)
}

// printProposal writes what apply would do. It abbreviates the node's own folders as LIB and RUN, and writes the kind of
// a step only if the step before has another kind.
func printProposal(w io.Writer, width int, p *node.Proposal, dirs layout.Node) {
	fmt.Fprintf(w, "%s: %s\n", p.Node, p.Summary())
	for _, g := range p.Gone {
		wrap(w, width, 8, "    ", g)
	}
	if len(p.Drift) > 0 {
		fmt.Fprintln(w, "    changed live since it was applied:")
	}
	for _, d := range vnode.ByEntry(p.Drift) {
		wrap(w, width, 8, "      ", difference(d))
	}
	if len(p.Differences) > 0 {
		fmt.Fprintln(w, "    apply would change:")
	}
	for _, d := range vnode.ByEntry(p.Differences) {
		wrap(w, width, 8, "      ", difference(d)+word(d.Live, "", " (needs a restart)"))
	}
	short := strings.NewReplacer(dirs.Lib+"/", "LIB/", dirs.Run+"/", "RUN/")
	var notes []note
	kind, shortened := "", false
	for i, s := range p.Steps {
		text := short.Replace(s.Text)
		shortened = shortened || text != s.Text
		if s.Kind == kind {
			s.Kind = ""
		} else {
			kind = s.Kind
		}
		wrap(w, width, 23, fmt.Sprintf("%4d  %-16s ", i+1, s.Kind), text)
		key, _, _ := strings.Cut(s.Text, " ")
		notes = append(notes, note{key, s.Note})
	}
	printNotes(w, width, notes)
	if shortened {
		wrap(w, width, 2, "", "LIB is "+dirs.Lib+", RUN is "+dirs.Run)
	}
}

func specFlag(c *cobra.Command, file *string) {
	c.Flags().StringVarP(file, "file", "f", "", "the spec, a YAML `FILE`; - is standard input")
	_ = c.MarkFlagFilename("file", "yaml", "yml") // fails only for an unknown flag
}

// specsAndBerth reads the specs of the file that -f names, and opens the Berth that keeps the nodes.
func (a *app) specsAndBerth(ctx context.Context, file string) ([]*vnode.Node, *node.Berth, error) {
	if file == "" {
		return nil, nil, refuse.Invalidf("no spec given: -f FILE, or -f - for standard input")
	}
	nodes, err := a.readSpecs(ctx, file)
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
