package images

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"berth/internal/sys/refuse"
)

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
