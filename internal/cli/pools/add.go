package pools

import (
	"fmt"
	"path/filepath"

	"github.com/spf13/cobra"

	"berth/internal/storage/scratch"
	"berth/internal/sys/refuse"
)

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
