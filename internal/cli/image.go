package cli

import (
	"github.com/spf13/cobra"

	"berth/internal/cli/images"
	"berth/internal/cli/share"
	"berth/internal/image"
)

func (a *app) imageCmd() *cobra.Command {
	c := &cobra.Command{
		Use: "image", Short: "the images that nodes are made from",
		Long: `The images that nodes are made from, kept on this host. A spec names one as
oci:NAME. A layer that several images have is kept once.`,
		Example: "  berth image pull docker.io/library/debian:12 --name debian\n  berth image import busybox.tar busybox\n" +
			"  berth image ls\n  berth image rm busybox",
	}
	c.AddCommand(a.imagePullCmd(), a.imageImportCmd(), a.packs().Pack(), a.packs().Trust(), a.imageLsCmd(), a.imageRmCmd(), a.imagePruneCmd())
	others := share.App{
		Out: a.Out, Err: a.Err, JSON: &a.json, Layout: a.layout, JSONFlag: a.jsonFlag, PrintJSON: a.printJSON, Progress: a.byteProgress,
	}
	c.AddCommand(others.Build(), others.Serve())
	return c
}

// packs returns the commands of package images.
func (a *app) packs() images.App {
	return images.App{
		Out: a.Out, Err: a.Err, JSON: &a.json, Store: func() image.Store { return image.Open(a.layout()) },
		Names: cobra.CompletionFunc(a.imageNames("")), JSONFlag: a.jsonFlag, PrintJSON: a.printJSON,
	}
}
