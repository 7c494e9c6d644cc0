package sitecli

import (
	"fmt"
	"net/http"
	"net/url"
	"strconv"

	"github.com/spf13/cobra"

	"berth/internal/site/api"
	"berth/internal/sys/text"
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

func (a *app) hostLsCmd() *cobra.Command {
	c := &cobra.Command{
		Use: "ls", Short: "list the hosts of the site", Args: cobra.NoArgs,
		Long:    "List the hosts of the site: whether their agents answer, what they have, and how\nmany nodes they still take. While the site's store is away the list is the last\nknown one, and a line on standard error says since when.",
		Example: "  berth host ls\n  berth host ls --json",
		RunE: func(cmd *cobra.Command, _ []string) error {
			agent, err := a.client()
			if err != nil {
				return err
			}
			var all api.SiteHosts
			if err := agent.Do(cmd.Context(), http.MethodGet, "/v1/site/hosts", nil, nil, &all); err != nil {
				return err
			}
			if a.json {
				return a.printJSON(all)
			}
			if all.Stale != "" {
				fmt.Fprintln(a.Err, all.Stale)
			}
			return text.Rows(a.Out, text.Columns(a.Out), hostRows(all.Hosts))
		},
	}
	return a.jsonFlag(c)
}

// hostRows is the table of berth host ls.
func hostRows(all []api.Host) [][]string {
	rows := [][]string{{"HOST", "STATE", "NODES", "RUNNING", "FREE", "CPUS", "MEMORY", "ADDRESS", "VERSION"}}
	for _, h := range all {
		state := text.Either(h.Alive, "up", "away")
		if h.Drained {
			state += ", drained"
		}
		f := h.Facts
		if f == nil {
			f = &api.HostFacts{}
		}
		count := func(n int, known bool) string {
			if h.Facts == nil || !known {
				return "-"
			}
			return strconv.Itoa(n)
		}
		memory := "-"
		if f.Memory > 0 {
			memory = text.Human(f.Memory)
		}
		rows = append(rows, []string{
			h.Name, state, count(f.Nodes, true), count(f.Running, true), count(f.Free, f.Slots > 0), count(f.CPUs, true), memory,
			text.OrDash(h.Address), text.OrDash(h.Version),
		})
	}
	return rows
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
