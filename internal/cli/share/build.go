package share

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"berth/internal/image"
	"berth/internal/image/debian"
	"berth/internal/sys/refuse"
	"berth/internal/sys/text"
)

// Build returns the command berth image build.
func (a App) Build() *cobra.Command {
	r := debian.Request{}
	name := ""
	c := a.JSONFlag(&cobra.Command{
		Use: "build debian", Short: "make an image from Debian's packages",
		Args: cobra.ExactArgs(1),
		Long: `Make an image from Debian's packages, with mmdebstrap: the essential packages,
apt, systemd and D-Bus, and those that --with names. Its command is /sbin/init,
so a node without a command of its own boots systemd (on cgroup v2); with a
command in its spec a node runs that, on any host.

The packages come from Debian's servers, or from --mirror, and apt verifies
their signatures. Their scripts run as root on this host, in namespaces of their
own. The store has the image when it is whole, as --name; what a killed build
left is removed by the next build, berth image prune or berth repair.

Exit codes: 1 apt or mmdebstrap failed: no such suite or package, no connection;
2 a name that cannot be one; 3 no mmdebstrap, or no room on the disk.`,
		Example: "  berth image build debian\n" +
			"  berth image build debian --suite trixie --with slurmd,munge --name worker\n" +
			"  berth image build debian --mirror http://mirror.example/debian",
		ValidArgs: []string{"debian"},
		RunE: func(cmd *cobra.Command, args []string) error {
			if args[0] != "debian" {
				return refuse.Invalidf("%s cannot be built: berth image build makes images of one system: berth image build debian", args[0])
			}
			if name == "" {
				name = "debian:" + r.Suite
			}
			rec, err := a.build(cmd.Context(), r, name)
			if err != nil {
				return err
			}
			if *a.JSON {
				return a.PrintJSON(rec)
			}
			fmt.Fprintf(a.Out, "%s: %s, %s; image: oci:%s\n", rec.Name, text.Count(len(rec.Layers), "layer"), text.Human(rec.Size), rec.Name)
			return nil
		},
	})
	c.Flags().StringVar(&r.Suite, "suite", "bookworm", "which Debian, by the `NAME` of its suite")
	c.Flags().StringSliceVar(&r.With, "with", nil, "install a `PACKAGE` too; may be given again")
	c.Flags().StringVar(&r.Mirror, "mirror", "", "take the packages from this `URL`; the image's apt does then too")
	c.Flags().StringVar(&name, "name", "", "its `NAME` in the store (default debian:SUITE)")
	return c
}

// build makes a root, and imports it.
func (a App) build(ctx context.Context, r debian.Request, name string) (rec image.Record, err error) {
	// Before the minutes that a build takes.
	if err := r.Check(); err != nil {
		return rec, err
	}
	if err := image.CheckNew(name); err != nil {
		return rec, err
	}
	store := image.Open(a.Layout())
	if err := store.Make(); err != nil {
		return rec, err
	}
	r.Folder = a.Layout().Builds()
	r.Say = func(phase string) { fmt.Fprintf(a.Err, "berth: build: %s\n", phase) }
	root, err := debian.Build(ctx, r)
	if err != nil {
		return rec, err
	}
	defer func() { err = errors.Join(err, root.Remove(context.WithoutCancel(ctx))) }()
	progress, done := a.Progress("import")
	rec, err = store.Import(ctx, root.Tar, image.As{
		Name: name, From: "debian " + r.Suite + " with " + strings.Join(r.Packages(), " "), Command: []string{"/sbin/init"},
	}, progress)
	done()
	return rec, err
}
