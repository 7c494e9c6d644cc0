package sitecli

import (
	"fmt"
	"net/http"
	"net/url"

	"github.com/spf13/cobra"

	"berth/internal/site/api"
)

// hostCmd is the hosts of the site, as an agent knows them.
func (a *app) hostCmd() *cobra.Command {
	c := &cobra.Command{
		Use: "host COMMAND", Short: "the hosts of a site",
		Long:    "The hosts of a site, as this host's agent knows them, or the one that --host names.",
		Example: "  berth host ls\n  berth host drain node7\n  berth --host node1 host ls",
	}
	c.AddCommand(
		a.hostLsCmd(),
		a.hostActCmd(http.MethodPost, "/drain", "drain", "keep new nodes from a host",
			"Keep new nodes from a host, before it is repaired or leaves. Nodes that it has\nrun on, and may be stopped and started; apply and run make no new ones there."),
		a.hostActCmd(http.MethodPost, "/undrain", "undrain", "let a host take new nodes again", "Let a host take new nodes again."),
		a.hostActCmd(http.MethodDelete, "", "forget", "release the claims of a host that does not come back",
			"Take a host out of the site and release all names, MACs and addresses that its\nnodes have claimed. Only for a host that does not come back: one that was\nforgotten and still runs its nodes has addresses that others may take. A host\nwhose agent answers is refused; berthd --leave takes it out."),
	)
	return c
}

// hostActCmd is a command that does something to one host of the site.
func (a *app) hostActCmd(method, path, name, short, long string) *cobra.Command {
	return &cobra.Command{
		Use: name + " HOST", Short: short, Long: long, Example: "  berth host " + name + " node7", Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			agent, err := a.client()
			if err != nil {
				return err
			}
			var done api.Done
			if err := agent.Do(cmd.Context(), method, "/v1/site/hosts/"+url.PathEscape(args[0])+path, nil, nil, &done); err != nil {
				return err
			}
			fmt.Fprintln(a.Out, done.Name, done.Did)
			return nil
		},
	}
}
