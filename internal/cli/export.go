package cli

import (
	"os"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"berth/internal/sys/file"
	"berth/internal/sys/refuse"
	"berth/internal/sys/treetar"
)

// toStdout gives a stream to standard output, which must not be a terminal.
func (a *app) toStdout(write func(*os.File) (treetar.Tally, error)) (treetar.Tally, error) {
	if term.IsTerminal(int(os.Stdout.Fd())) {
		return treetar.Tally{}, refuse.Invalidf("standard output is a terminal, and would get a tar stream: write it to a file, or into tar -t")
	}
	return write(os.Stdout)
}

func (a *app) exportCmd() *cobra.Command {
	var output string
	c := &cobra.Command{
		Use: "export NODE", Short: "write a node's root as a tar", Args: cobra.ExactArgs(1),
		Long: `Write the root of a node, which may run or not, as a tar stream: its image with
what the node wrote, without what is mounted in it. Owners are the node's ids.
Devices and sockets are left out, and said so. A file of the name that -o gives
is replaced only when the new one is complete.

berth image import makes an image of it. Of a node of image host it is what the
node wrote, because its programs are the host's.`,
		Example: `  berth export wn-001 | gzip >wn-001.tar.gz
  berth export -o wn-001.tar wn-001 && berth image import wn-001.tar copy`,
		ValidArgsFunction: a.nodeNames(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			root, err := a.open().OpenRoot(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			defer root.Close()
			write := func(out *os.File) (treetar.Tally, error) { return root.Export(cmd.Context(), out) }
			var tally treetar.Tally
			if output == "" || output == "-" {
				tally, err = a.toStdout(write)
			} else {
				err = file.Output(output, 0o600, func(out *os.File) (err error) {
					if tally, err = write(out); err == nil {
						err = tally.Failed()
					}
					return err
				})
			}
			return a.copied(tally, err)
		},
	}
	c.Flags().StringVarP(&output, "output", "o", "", "write to this `FILE`")
	_ = c.MarkFlagFilename("output", "tar") // fails only for an unknown flag
	return c
}
