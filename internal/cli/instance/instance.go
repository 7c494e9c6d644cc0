// Package instance is the commands berth instance: a user gets a node of the site's Slurm for some hours, and needs to know
// nothing of Slurm.
package instance

import (
	"context"
	"strconv"

	"github.com/spf13/cobra"

	"berth/internal/cli/act"
	"berth/internal/site/slurm/instance"
	"berth/internal/sys/refuse"
)

// port is where an instance's sshd listens: a user may open no port below 1024.
const port = 2222

// Commands is what the commands need of the command line.
type Commands struct {
	act.App
}

// Instance returns the command berth instance.
func (c Commands) Instance() *cobra.Command {
	i := &cobra.Command{
		Use: "instance", Short: "a node of the pool for some hours, reached by ssh",
		Long: `A fresh node of the site's pool, for the user who calls, until its time is over
or it is ended. The pool is Slurm's: the node is a job of that user there, with
the limits of its template (share/doc/berth/slurm.md).`,
		Example: "  berth instance up --time 4h\n  berth instance ls\n  berth instance ssh 17\n  berth instance down 17",
	}
	i.AddCommand(c.up(), c.ls(), c.ssh(), c.down())
	return i
}

// find returns the instance that a user names.
func find(ctx context.Context, name string) (instance.Instance, error) {
	id, err := strconv.Atoi(name)
	if err != nil || id < 1 {
		return instance.Instance{}, refuse.Invalidf("%q is no number of an instance (berth instance ls lists them)", name)
	}
	return instance.Find(ctx, id)
}

// words says what an instance does now.
func words(i instance.Instance) string {
	switch {
	case i.State == "RUNNING":
		return "is on node " + i.Node
	case i.State == "CONFIGURING":
		return "has node " + i.Node + ", which is being made"
	case i.Waits() && i.Reason != "":
		return "waits: " + i.Reason
	case i.Waits():
		return "waits"
	}
	return "has ended: " + i.State
}

func until(i instance.Instance) string {
	if i.Until.IsZero() {
		return "-"
	}
	return i.Until.Format("2006-01-02 15:04")
}
