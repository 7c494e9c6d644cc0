package sync

import (
	"cmp"
	"slices"

	"github.com/spf13/cobra"

	"berth/internal/host/membership"
	"berth/internal/site/iosync"
	"berth/internal/sys/text"
)

func (c Commands) ls() *cobra.Command {
	return c.JSONFlag(&cobra.Command{
		Use: "ls", Short: "what is enforced here for which node", Args: cobra.NoArgs,
		Long: `List the nodes that have a group on a file system of this host, with each limit
as it was asked for (this server's part of it) and as the kernel has it now, and
what honours it; since when the node is held here. What the limits do not hold
is said below the table, as are file systems of berthd's file that cannot be
served, hosts of nodes that the site does not hear of (their nodes' limits
stay), and since when this host does not hear of the site: what nodes may do
there was changed since, perhaps.`,
		Example:           "  berth sync ls\n  berth sync ls --json",
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, _ []string) error {
			l := c.Open().Layout
			all, err := iosync.Show(l)
			if err != nil {
				return err
			}
			if member, err := membership.Read(l); err == nil && member != nil && len(all) > 0 {
				stale, away := membership.AgentOf(l, member).Stale(cmd.Context())
				for i := range all {
					all[i].Stale, all[i].Away = stale, slices.Contains(away, all[i].Host)
				}
			}
			if *c.JSON {
				return c.PrintJSON(all)
			}
			return c.table(all)
		},
	})
}

// table prints a line a limit; a node without limits has one line.
func (c Commands) table(all []iosync.Held) error {
	rows := [][]string{{"FILE SYSTEM", "NODE", "OF HOST", "LIMIT", "ASKED", "READ BACK", "HONOURED BY", "SINCE"}}
	var notes []text.Note
	said := map[string]bool{}
	note := func(key, what string) {
		if what != "" && !said[key+what] {
			said[key+what] = true
			notes = append(notes, text.Note{Key: key, Text: what})
		}
	}
	for _, h := range all {
		if len(h.Limits) == 0 {
			rows = append(rows, []string{h.Filesystem, text.OrDash(h.Node), text.OrDash(h.Host), "-", "-", "-", "-", since(h)})
		}
		for _, l := range h.Limits {
			rows = append(rows, []string{h.Filesystem, h.Node, h.Host, l.Key, l.Asked, text.OrDash(l.ReadBack), l.By, since(h)})
			if !l.Holds {
				note(h.Node, l.Key+": the kernel has another value than was asked for: somebody else wrote it")
			}
		}
		if h.Failed != "" {
			note(cmp.Or(h.Node, h.Filesystem), "not enforced: "+h.Failed)
		}
		if h.Missing != "" {
			note(h.Filesystem, "not enforced: "+h.Missing)
		}
		for _, s := range h.Strays {
			note(h.Node, "not enforced: "+s)
		}
		if h.Away {
			note("host "+h.Host, "not heard of: what is held for its nodes stays until it is back; if it is gone for good: berth host forget "+h.Host)
		}
		note(h.Filesystem, h.Stale)
	}
	if err := text.Rows(c.Out, text.Columns(c.Out), rows); err != nil {
		return err
	}
	text.Notes(c.Out, text.Columns(c.Out), notes)
	return nil
}

// since says since when a node is held, as times of this host.
func since(h iosync.Held) string {
	if h.Since.IsZero() {
		return "-"
	}
	return h.Since.Local().Format("2006-01-02 15:04:05")
}
