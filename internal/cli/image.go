package cli

import (
	"fmt"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"berth/internal/cli/images"
	"berth/internal/cli/share"
	"berth/internal/image"
	"berth/internal/image/pull"
	"berth/internal/sys/text"
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

// leftOut says what of an image was not imported.
func (a *app) leftOut(rec image.Record) {
	if len(rec.Skipped) > 0 {
		fmt.Fprintf(a.Err, "left out, every node has its own: %s\n", strings.Join(rec.Skipped, " "))
	}
	if rec.NoACLs > 0 {
		fmt.Fprintf(a.Err, "left out, without more rights for anybody: %s that name users without numbers (tar --acls --xattrs --xattrs-include='*' writes numbers) or are of FIFOs\n",
			text.Count(rec.NoACLs, "access control list"))
	}
}

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

func (a *app) imageLsCmd() *cobra.Command {
	return a.jsonFlag(&cobra.Command{
		Use: "ls", Short: "list the images",
		Example: "  berth image ls\n  berth image ls --json",
		RunE: func(*cobra.Command, []string) error {
			all, err := image.Open(a.layout()).List()
			if err != nil {
				return err
			}
			files, err := image.Open(a.layout()).ListPacked()
			if err != nil {
				return err
			}
			all = append(all, files...)
			if a.json {
				return a.printJSON(all)
			}
			w := tabwriter.NewWriter(a.Out, 0, 0, 2, ' ', 0)
			fmt.Fprintln(w, "NAME\tLAYERS\tSIZE\tDIGEST\tIMPORTED")
			for _, r := range all {
				if r.Broken != "" {
					fmt.Fprintf(w, "%s\t-\t-\t-\tbroken: %s; import it again, or berth image rm %s\n", r.Name, r.Broken, r.Name)
					continue
				}
				fmt.Fprintf(w, "%s\t%d\t%s\t%.12s\t%s ago\n",
					r.Name, len(r.Layers), text.Human(r.Size), strings.TrimPrefix(r.Manifest, "sha256:"), text.Ago(r.Imported))
			}
			return w.Flush()
		},
	})
}

func (a *app) imageRmCmd() *cobra.Command {
	return &cobra.Command{
		Use: "rm NAME…", Short: "remove images that no node uses", Args: cobra.MinimumNArgs(1),
		Long:              "Remove images. One that a node uses stays, running or not (exit 5). What pulls\nthat were cut off left goes too, once it is a week old; berth image prune\nremoves it at once.\n\nOf file:FILE the store's copy goes, and FILE stays: it is yours.",
		Example:           "  berth image rm worker\n  berth image rm file:/srv/images/worker.erofs",
		ValidArgsFunction: a.removableNames,
		RunE: func(cmd *cobra.Command, names []string) error {
			if _, err := pull.Sweep(a.layout().Pulls(), pull.Stale); err != nil {
				return err
			}
			return each(names, func(name string) error {
				if err := image.Open(a.layout()).Remove(cmd.Context(), name, a.open().ImageUsers); err != nil {
					return err
				}
				fmt.Fprintf(a.Out, "%s removed\n", name)
				return nil
			})
		},
	}
}
