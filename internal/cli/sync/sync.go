// Package sync is the commands berth sync: what this file server does for the nodes of its site (VNode Sync).
package sync

import (
	"fmt"
	"net/netip"
	"strconv"

	"github.com/spf13/cobra"

	"berth/internal/cli/act"
	"berth/internal/host/membership"
	"berth/internal/site/iosync"
	"berth/internal/site/iosync/place"
	"berth/internal/sys/refuse"
	"berth/internal/sys/text"
)

// Commands is what the commands need of the command line.
type Commands struct {
	act.App
}

// Sync returns the command berth sync.
func (c Commands) Sync() *cobra.Command {
	s := &cobra.Command{
		Use: "sync", Short: "what this file server does for nodes of the site",
		Long: `VNode Sync on a file server: nodes of the site that name one of its file systems
in their io entries are held here to their limits, in a group of block I/O each.
berthd keeps the groups of the file systems that its file names
(share/doc/berth/sync.md).`,
		Example: "  berth sync ls\n  berth sync audit shared --for 30s",
	}
	s.AddCommand(c.ls(), c.audit(), c.enter(), c.simulate())
	return s
}

func (c Commands) ls() *cobra.Command {
	return c.JSONFlag(&cobra.Command{
		Use: "ls", Short: "what is enforced here for which node", Args: cobra.NoArgs,
		Long: `List the nodes that have a group on a file system of this host, with each limit
as it was asked for (this server's part of it) and as the kernel has it now, and
what honours it. What the limits do not hold is said below the table, and since
when this host does not hear of the site: what nodes may do there was changed
since, perhaps.`,
		Example:           "  berth sync ls\n  berth sync ls --json",
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, _ []string) error {
			l := c.Open().Layout
			all, err := iosync.Show(l)
			if err != nil {
				return err
			}
			if member, err := membership.Read(l); err == nil && member != nil && len(all) > 0 {
				stale := membership.AgentOf(l, member).Stale(cmd.Context())
				for i := range all {
					all[i].Stale = stale
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
	rows := [][]string{{"FILE SYSTEM", "NODE", "OF HOST", "LIMIT", "ASKED", "READ BACK", "HONOURED BY"}}
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
			rows = append(rows, []string{h.Filesystem, h.Node, h.Host, "-", "-", "-", "-"})
		}
		for _, l := range h.Limits {
			rows = append(rows, []string{h.Filesystem, h.Node, h.Host, l.Key, l.Asked, text.OrDash(l.ReadBack), l.By})
			if !l.Holds {
				note(h.Node, l.Key+": the kernel has another value than was asked for: somebody else wrote it")
			}
		}
		if h.Failed != "" {
			note(h.Node, "not enforced: "+h.Failed)
		}
		if h.Missing != "" {
			note(h.Filesystem, "not enforced: "+h.Missing)
		}
		note(h.Filesystem, h.Stale)
	}
	if err := text.Rows(c.Out, text.Columns(c.Out), rows); err != nil {
		return err
	}
	text.Notes(c.Out, text.Columns(c.Out), notes)
	return nil
}

func (c Commands) enter() *cobra.Command {
	return &cobra.Command{
		Use: "enter FILESYSTEM ADDRESS PID", Short: "put a process that serves a client into its node's group", Args: cobra.ExactArgs(3),
		Long: `Put process PID of a file server, which works for the client at ADDRESS, into
the group of the node that has this address: from now on what it reads and
writes is held to the node's limits on FILESYSTEM. An address that is no node's
changes nothing. For servers that have a process a client and run a program
before they serve it; in smb.conf:

  root preexec = /usr/bin/berth sync enter shared %I %d
  root preexec close = yes

With the second line a session is refused if its process cannot be put there.

Exit codes: 2 no address or no number; 3 berthd serves no such file system here;
4 no such process.`,
		Example:           "  berth sync enter shared 192.0.2.7 4711",
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(_ *cobra.Command, args []string) error {
			addr, err := netip.ParseAddr(args[1])
			if err != nil {
				return refuse.Invalidf("%q is no IP address", args[1])
			}
			pid, err := strconv.Atoi(args[2])
			if err != nil || pid < 2 {
				return refuse.Invalidf("%q is no number of a process", args[2])
			}
			node, err := place.Enter(c.Open().Layout, args[0], addr, pid)
			if err == nil && node != "" {
				fmt.Fprintf(c.Err, "process %d works for node %s\n", pid, node)
			}
			return err
		},
	}
}
