package sitecli

import (
	"fmt"
	"net/http"
	"strconv"

	"github.com/spf13/cobra"

	"berth/internal/site/api"
	"berth/internal/sys/text"
)

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
