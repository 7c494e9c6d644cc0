package sync

import (
	"fmt"
	"net/netip"
	"strconv"

	"github.com/spf13/cobra"

	"berth/internal/site/iosync/place"
	"berth/internal/sys/refuse"
)

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
