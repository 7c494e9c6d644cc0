package cli

import (
	"fmt"
	"log/slog"
	"net"
	"strconv"

	"github.com/spf13/cobra"

	groups "berth/internal/site/iosync/place"
	"berth/internal/storage/sftpserve"
)

func (a *app) gatewayServeCmd() *cobra.Command {
	var o sftpserve.Options
	var filesystem string
	c := &cobra.Command{
		Use: "serve DIR", Short: "serve a folder to mounts with gateway: sshfs-direct", Args: cobra.ExactArgs(1),
		Long: `Serve a folder of this host by SFTP over plain TCP, without encryption, until
SIGTERM or Ctrl-C: for mounts with gateway: sshfs-direct on a private network.
Each client gets a process of its own, an sftp-server of OpenSSH: it runs as
--user, never as root, and sees this folder and nothing else of the host.

There is no login: whoever speaks from an allowed address is --user. Allow only
addresses of nodes, on a network on which nobody else can take them. Berth keeps
the processes of a node from the port (share/doc/berth/gateways.md).

With --sync a client's process works in the group of the node whose address it
has, within the node's limits on that shared file system, which berthd keeps
here (share/doc/berth/sync.md). A client whose group cannot be entered is
refused; other addresses are served without limits.

Exit codes: 2 wrong usage, or --user root; 3 no openssh-sftp-server here, or
berthd serves no such file system; 4 no such folder or user; 5 the port is in
use.`,
		Example: "  berth gateway serve /srv/data --user alice --allow 10.0.0.0/24\n" +
			"  berth gateway serve /srv --user alice --allow 10.0.0.7 --listen 10.0.0.1:7022",
		RunE: func(cmd *cobra.Command, args []string) error {
			o.Dir = args[0]
			if filesystem != "" {
				in, err := groups.NewEntrance(a.layout(), filesystem)
				if err != nil {
					return err
				}
				o.Start = in.Start
			}
			s, err := sftpserve.New(o, slog.New(slog.NewTextHandler(a.Err, nil)))
			if err != nil {
				return err
			}
			return s.Serve(cmd.Context(), func(at net.Addr) {
				fmt.Fprintf(a.Out, "serving %s as user %s on %s\n", o.Dir, o.User, at)
			})
		},
		ValidArgsFunction: func(_ *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
			if len(args) > 0 {
				return nil, cobra.ShellCompDirectiveNoFileComp
			}
			return nil, cobra.ShellCompDirectiveFilterDirs
		},
	}
	c.Flags().StringVar(&o.User, "user", "", "the `USER` of this host, by name or number, that clients act as")
	c.Flags().StringArrayVar(&o.Allow, "allow", nil, "serve clients at `ADDRESS` or ADDRESS/LENGTH; may be given again")
	c.Flags().StringVar(&o.Listen, "listen", ":"+strconv.Itoa(sftpserve.Port), "listen at `ADDRESS:PORT`")
	c.Flags().StringVar(&filesystem, "sync", "", "the shared `FILESYSTEM` of which DIR is a part: nodes are held to their limits on it")
	for _, flag := range []string{"user", "allow", "listen", "sync"} {
		_ = c.RegisterFlagCompletionFunc(flag, cobra.NoFileCompletions)
	}
	return c
}
