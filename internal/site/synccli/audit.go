package synccli

import (
	"encoding/json"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"berth/internal/site/iosync/probe"
	"berth/internal/sys/refuse"
)

// audit is berth-sync audit: the program that berth sync audit becomes.
func audit(out io.Writer) *cobra.Command {
	var dir, disk string
	var during time.Duration
	var asJSON bool
	c := &cobra.Command{
		Use: "audit --dir DIR --disk MAJ:MIN", Short: "count a disk's I/O by node and by the group that is charged",
		Args: cobra.NoArgs,
		Long: `Count a disk's I/O by node and by the group that is charged for it. berth sync
audit finds the folder and the disk, and becomes this.`,
		Example: "  berth-sync audit --dir /run/berth/sync/shared --disk 8:16 --for 30s",
		RunE: func(cmd *cobra.Command, _ []string) error {
			var major, minor uint32
			if n, err := fmt.Sscanf(disk+"\n", "%d:%d\n", &major, &minor); n != 2 || err != nil || minor >= 1<<20 || major >= 1<<12 {
				return refuse.Invalidf("--disk %q is no disk's number, for example 8:16", disk)
			}
			if dir == "" {
				return refuse.Invalidf("--dir is missing: the folder that berthd publishes for the file system")
			}
			if during <= 0 {
				return refuse.Invalidf("--for %s is no time to count for, for example 30s", during)
			}
			r, err := probe.Audit(cmd.Context(), dir, major, minor, during)
			if err != nil {
				return err
			}
			if !asJSON {
				return r.Write(out)
			}
			enc := json.NewEncoder(out)
			enc.SetIndent("", "  ")
			enc.SetEscapeHTML(false)
			return enc.Encode(r)
		},
	}
	c.Flags().StringVar(&dir, "dir", "", "the `DIR` that berthd publishes for the file system")
	c.Flags().StringVar(&disk, "disk", "", "the disk's number `MAJ:MIN`")
	c.Flags().DurationVar(&during, "for", 30*time.Second, "count for this `TIME`, or until Ctrl-C")
	c.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return c
}
