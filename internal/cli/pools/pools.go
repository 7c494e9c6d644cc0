// Package pools is the commands berth pool, for the pools that scratch volumes are made in.
package pools

import (
	"fmt"
	"path/filepath"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"berth/internal/cli/act"
	"berth/internal/storage/scratch"
	"berth/internal/sys/refuse"
	"berth/internal/sys/text"
)

// Commands is what the commands need of the command line.
type Commands struct {
	act.App
}

func (c Commands) pools() scratch.Pools { return scratch.Pools{Dir: c.Open().Layout.Scratch()} }

// Pool returns the command berth pool.
func (c Commands) Pool() *cobra.Command {
	p := &cobra.Command{
		Use: "pool", Short: "the pools that scratch volumes of nodes are made in",
		Long: `The pools that scratch volumes of nodes are made in: an LVM volume group, a
folder, or memory. A node's spec names a pool by its name, in scratch; without a
name it is the pool named default.`,
		Example: "  berth pool add vg0 --vg vg0\n  berth pool add default --dir /srv/scratch\n  berth pool ls",
	}
	p.AddCommand(c.add(), c.ls(), c.rm())
	return p
}

func (c Commands) add() *cobra.Command {
	var p scratch.Pool
	add := &cobra.Command{
		Use: "add NAME --vg GROUP | --dir DIR | --memory", Short: "add a pool", Args: cobra.ExactArgs(1),
		Long: `Add a pool. --vg: each scratch volume is a logical volume of its own in this
volume group, with the tag berth; with --thin it is a thin one in this thin
pool. --dir: each is a folder with a project quota where the file system has
such quotas, else a file with a file system in it; only root may be able to
change DIR. --memory: each is a file system in memory, which counts as the
node's memory and is empty at each start.

Nothing is ever removed but what Berth made in the pool.`,
		Example: "  berth pool add vg0 --vg vg0\n  berth pool add fast --vg vg0 --thin thin0\n" +
			"  berth pool add default --dir /srv/scratch\n  berth pool add ram --memory",
		RunE: func(cmd *cobra.Command, args []string) error {
			p.Name = args[0]
			given := 0
			for _, f := range []string{"vg", "dir", "memory"} {
				if cmd.Flags().Changed(f) {
					given++
				}
			}
			switch {
			case given != 1:
				return refuse.Invalidf("%d of --vg, --dir and --memory are given: exactly one says where the pool is", given)
			case p.VG == "" && p.Dir == "" && !p.Memory:
				return refuse.Invalidf("--vg, --dir or --memory is empty")
			case p.Thin != "" && p.VG == "":
				return refuse.Invalidf("--thin needs --vg: the volume group of the thin pool")
			}
			var err error
			if p.Dir != "" {
				if p.Dir, err = filepath.Abs(p.Dir); err != nil {
					return err
				}
			}
			b, err := c.ToStart()
			if err == nil {
				err = b.Layout.Make()
			}
			if err != nil {
				return err
			}
			made, err := c.pools().Add(cmd.Context(), p)
			if err != nil {
				return err
			}
			if *c.JSON {
				return c.PrintJSON(made)
			}
			fmt.Fprintf(c.Out, "%s: %s\n", made.Name, made)
			return nil
		},
	}
	add.Flags().StringVar(&p.VG, "vg", "", "LVM volume `GROUP`")
	add.Flags().StringVar(&p.Thin, "thin", "", "thin `POOL` in the volume group")
	add.Flags().StringVar(&p.Dir, "dir", "", "folder `DIR` of this host")
	add.Flags().BoolVar(&p.Memory, "memory", false, "memory of this host")
	_ = add.MarkFlagDirname("dir") // fails only for an unknown flag
	return c.JSONFlag(add)
}

func (c Commands) ls() *cobra.Command {
	return c.JSONFlag(&cobra.Command{
		Use: "ls", Short: "list the pools, what they hold and what is free",
		Long: `List the pools, with the whole size and what is free of the volume group, thin
pool or file system, and with the volumes that they hold.`,
		Example: "  berth pool ls\n  berth pool ls --json",
		RunE: func(cmd *cobra.Command, _ []string) error {
			all, err := c.pools().List(cmd.Context())
			if err != nil {
				return err
			}
			if *c.JSON {
				return c.PrintJSON(all)
			}
			w := tabwriter.NewWriter(c.Out, 0, 0, 2, ' ', 0)
			fmt.Fprintln(w, "NAME\tVOLUMES\tFREE\tSIZE\tIS")
			for _, p := range all {
				free, size, is := "-", "-", p.Pool.String()
				if p.Size > 0 {
					free, size = text.Human(p.Free), text.Human(p.Size)
				}
				if p.Trouble != "" {
					is += ": " + p.Trouble
				}
				fmt.Fprintf(w, "%s\t%d\t%s\t%s\t%s\n", p.Name, len(p.Volumes), free, size, is)
			}
			return w.Flush()
		},
	})
}

func (c Commands) rm() *cobra.Command {
	return &cobra.Command{
		Use: "rm NAME…", Short: "remove pools that no node uses", Args: cobra.MinimumNArgs(1),
		Long: `Remove pools that no node uses and that hold no volume (else exit 5). The volume
group or folder stays as it is, but for the empty folder that Berth made there.`,
		Example: "  berth pool rm vg0",
		ValidArgsFunction: func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
			names, _ := c.pools().Names() // nothing to offer without an answer
			return names, cobra.ShellCompDirectiveNoFileComp
		},
		RunE: func(cmd *cobra.Command, names []string) error {
			return c.Each(names, func(name string) error {
				nodes, err := c.Open().Specs()
				if err == nil {
					err = c.pools().Remove(cmd.Context(), name, nodes)
				}
				if err == nil {
					fmt.Fprintf(c.Out, "%s removed\n", name)
				}
				return err
			})
		},
	}
}
