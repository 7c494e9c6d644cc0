// Package images is the commands berth image pack and trust: images that are one file.
package images

import (
	"context"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"berth/internal/image"
	"berth/internal/spec/vnode"
	"berth/internal/sys/refuse"
	"berth/internal/sys/text"
)

// App has what the commands share with the rest of the command line.
type App struct {
	Out, Err  io.Writer
	JSON      *bool // --json
	Store     func() image.Store
	Names     cobra.CompletionFunc // of stored images
	JSONFlag  func(*cobra.Command) *cobra.Command
	PrintJSON func(any) error
}

// Pack returns the command berth image pack.
func (a App) Pack() *cobra.Command {
	file := ""
	c := a.JSONFlag(&cobra.Command{
		Use: "pack NAME -o FILE", Short: "write an image to one file that nodes share", Args: cobra.ExactArgs(1),
		Long: `Write a stored image to one file of erofs or squashfs, as the name of FILE says:
all layers merged, with owners, modes, extended attributes and what the image
says of its command. image: file:FILE makes nodes from it. The kernel mounts the
file once for all of them, and has its content in memory once.

FILE belongs to root, and nodes can use it where it is. One that was packed on
another host needs berth image trust. It is there when it is whole.

Exit codes: 2 FILE has another ending; 3 mkfs.erofs or mksquashfs is not
installed, or no room on the disk; 4 there is no such image; 5 FILE exists.`,
		Example: "  berth image pack debian -o /srv/images/debian.erofs\n" +
			"  berth run --image file:/srv/images/debian.erofs -- cat /etc/os-release",
		ValidArgsFunction: a.Names,
		RunE: func(cmd *cobra.Command, args []string) error {
			if file == "" {
				return refuse.Invalidf("no file given: -o FILE, whose name ends in .erofs or .squashfs")
			}
			r, err := a.Store().Pack(cmd.Context(), args[0], file)
			if err != nil {
				return err
			}
			if len(r.NotKept) > 0 {
				fmt.Fprintf(a.Err, "%s keeps %s; erofs keeps all\n", r.Packed, strings.Join(r.NotKept, ", "))
			}
			return a.say(r)
		},
	})
	c.Flags().StringVarP(&file, "output", "o", "", "the `FILE` to write: its name ends in .erofs or .squashfs")
	_ = c.MarkFlagFilename("output", "erofs", "squashfs") // fails only for an unknown flag
	return c
}

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

func (a App) say(r image.Record) error {
	if *a.JSON {
		return a.PrintJSON(r)
	}
	_, err := fmt.Fprintf(a.Out, "%s: %s, %s, %.12s\n", r.Name, r.Packed, text.Human(r.Size), strings.TrimPrefix(r.Manifest, "sha256:"))
	return err
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
