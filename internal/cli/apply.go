package cli

import (
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"berth/internal/cli/images"
	"berth/internal/cli/show"
	"berth/internal/image"
	"berth/internal/node"
	"berth/internal/node/autostart"
	"berth/internal/spec/vnode"
)

func (a *app) applyCmd() *cobra.Command {
	var files []string
	var restart, trust bool
	c := &cobra.Command{
		Use: "apply -f FILE", Short: "make nodes as a spec says",
		Long: `Make the nodes of a spec: create and start what is not there, start what is
stopped, change live what can change live. It says unchanged, changed, created,
started, restarted, or names what needs a restart (exit 5; --restart allows
it). A file may hold several nodes, parted by ---, and -f may name several
files; each node is done, in order, whatever becomes of the others.`,
		Example: "  berth apply -f node.yaml\n  berth apply -f node.yaml --restart",
		RunE: func(cmd *cobra.Command, _ []string) error {
			nodes, b, err := a.specsAndBerth(cmd.Context(), files)
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
	specFlag(c, &files)
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
