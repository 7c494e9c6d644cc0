package cli

import (
	"fmt"

	"github.com/spf13/cobra"

	"berth/internal/image"
	"berth/internal/sys/text"
)

func (a *app) imageImportCmd() *cobra.Command {
	var as image.As
	c := a.jsonFlag(&cobra.Command{
		Use: "import ARCHIVE [NAME]", Short: "add an image from an archive, an OCI layout or the tar of a root",
		Args: cobra.RangeArgs(1, 2),
		Long: `Add an image from a file that docker save, podman save or skopeo wrote, from a
folder in OCI image layout, or from the tar of a root that mmdebstrap, docker
export or tar -C ROOT -c . wrote; plain, gzip or zstd. Layers are checked
against their digests and unpacked once for all images.

NAME is the name in the store; without it the archive's own. Where the archive
holds several images, the one called NAME is taken, or the one that --pick says.

Refused: device nodes (but those that every node has are left out of a root),
names and hard links that leave the image, more than 64 GiB, and what does not
fit on the disk.`,
		Example: "  berth image import worker.tar worker\n  berth run --image oci:worker -- hostname\n" +
			"  berth image import all.tar worker --pick registry/worker:1.2\n" +
			"  docker export box >root.tar && berth image import root.tar box",
		ValidArgsFunction: func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
			return nil, cobra.ShellCompDirectiveDefault
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) > 1 {
				as.Name = args[1]
			}
			progress, done := a.byteProgress("import")
			rec, err := image.Open(a.layout()).Import(cmd.Context(), args[0], as, progress)
			done()
			if err != nil {
				return err
			}
			if a.json {
				return a.printJSON(rec)
			}
			fmt.Fprintf(a.Out, "%s: %s, %s\n", rec.Name, text.Count(len(rec.Layers), "layer"), text.Human(rec.Size))
			a.leftOut(rec)
			return nil
		},
	})
	c.Flags().StringVar(&as.Pick, "pick", "", "which `image` of an archive with several: its name there, or its digest (12 digits or more)")
	return c
}
