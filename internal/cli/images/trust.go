package images

import (
	"context"

	"github.com/spf13/cobra"

	"berth/internal/image"
	"berth/internal/spec/vnode"
	"berth/internal/sys/refuse"
)

// Trust returns the command berth image trust.
func (a App) Trust() *cobra.Command {
	return a.JSONFlag(&cobra.Command{
		Use: "trust FILE", Short: "let nodes use a packed image from elsewhere", Args: cobra.ExactArgs(1),
		Long: `Let nodes use a file of erofs or squashfs that this host did not pack. The
kernel believes what such a file says of itself: one that was made to do harm
can harm the host, and a digest does not tell. So say this only of a file from
somebody whom you would let run programs as root here.

The file is copied into the store first (where the file system can do it, both
share their blocks), so that nobody can change it below the kernel. Nodes mount
the copy. A file that changes later is not trusted any more.`,
		Example: "  berth image trust /srv/images/worker.squashfs\n  berth run --image file:/srv/images/worker.squashfs -- hostname",
		ValidArgsFunction: func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
			return []string{"erofs", "squashfs"}, cobra.ShellCompDirectiveFilterFileExt
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			r, err := a.Store().Trust(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			return a.say(r)
		},
	})
}

// TrustFlag adds the flag --trust to a command that makes nodes.
func TrustFlag(c *cobra.Command, trust *bool) {
	c.Flags().BoolVar(trust, "trust", false, "trust the file of an image file:FILE, as berth image trust does")
}

// TrustAll trusts the files of nodes with a file image that needs it.
func TrustAll(ctx context.Context, s image.Store, nodes ...*vnode.Node) error {
	for _, n := range nodes {
		if n.Image.Kind != vnode.FileImage {
			continue
		}
		if _, err := s.Resolve(n.Image); refuse.KindOf(err) != refuse.Cannot {
			continue // trusted already, or nothing to trust: what makes the node says so
		}
		if _, err := s.Trust(ctx, n.Image.Ref); err != nil {
			return err
		}
	}
	return nil
}
