package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"berth/internal/image"
	"berth/internal/image/pull"
	"berth/internal/sys/text"
)

// pullFlags are the arguments of berth image pull.
type pullFlags struct {
	ref, name, platform string
	verify              bool
}

func (a *app) imagePullCmd() *cobra.Command {
	f := pullFlags{verify: true}
	c := a.jsonFlag(&cobra.Command{
		Use: "pull REF", Short: "add an image from a registry",
		Args: cobra.ExactArgs(1),
		Long: `Fetch an image from an OCI registry. REF is REGISTRY/REPOSITORY:TAG, or with
@sha256:… in place of the tag. The registry must be said. The store's name is
REF, or --name.

Logins are those of podman login and docker login, as root. Every part is
checked against its digest, and the image is listed once all of it is there. A
pull that was cut off goes on where it was: repeat the command.

Exit codes: 1 the registry failed, cannot be reached or refuses this login, or a
part is damaged; 2 REF or the image is not valid; 3 no image for this platform,
or no room on the disk; 4 there is no such image; 5 a layer that the store had
was removed meanwhile.`,
		Example: "  berth image pull docker.io/library/debian:12 --name debian\n" +
			"  berth run --image oci:debian -- cat /etc/os-release\n" +
			"  berth image pull registry.example/team/app:1.2 --platform linux/arm64",
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, args []string) error {
			f.ref = args[0]
			rec, err := a.pull(cmd.Context(), f)
			if err != nil {
				return err
			}
			a.leftOut(rec)
			if a.json {
				return a.printJSON(rec)
			}
			fmt.Fprintf(a.Out, "%s: %s, %s, from %s\n", rec.Name, text.Count(len(rec.Layers), "layer"), text.Human(rec.Size), rec.From)
			return nil
		},
	})
	c.Flags().StringVar(&f.name, "name", "", "its `NAME` in the store")
	c.Flags().StringVar(&f.platform, "platform", "", "the image for another `OS/ARCH` than this machine's, as linux/arm64")
	c.Flags().BoolVar(&f.verify, "tls-verify", true, "--tls-verify=false takes any certificate, and plain HTTP")
	return c
}

// pull fetches an image from a registry into the store.
func (a *app) pull(ctx context.Context, f pullFlags) (image.Record, error) {
	full, err := pull.Name(f.ref)
	if err != nil {
		return image.Record{}, err
	}
	store, l := image.Open(a.layout()), a.layout()
	if err := store.Make(); err != nil {
		return image.Record{}, err
	}
	if _, err := pull.Sweep(l.Pulls(), pull.Stale); err != nil {
		return image.Record{}, err
	}
	progress, done := a.byteProgress("pull")
	p, err := pull.Start(ctx, pull.Request{
		Ref: full, Platform: f.platform, Folder: l.Pulls(), Layers: l.Layers(), Insecure: !f.verify,
	}, pull.See{Progress: progress, Say: func(s string) { fmt.Fprintln(text.NewVisible(a.Err), "berth: "+s) }})
	done()
	if err != nil {
		return image.Record{}, err
	}
	progress, done = a.byteProgress("unpack")
	rec, err := store.Import(ctx, l.Pulls(), image.As{
		Name: cmp.Or(f.name, full), Manifest: p.Manifest, From: p.From, Foreign: f.platform != "",
	}, progress)
	done()
	return rec, errors.Join(err, p.End(err == nil))
}
