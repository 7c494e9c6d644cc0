// Package sync is the commands berth sync: what this file server does for the nodes of its site (VNode Sync).
package sync

import (
	"github.com/spf13/cobra"

	"berth/internal/cli/act"
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
