package cli

import (
	"fmt"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"berth/internal/node"
	"berth/internal/refuse"
	"berth/internal/spec"
)

func (a *app) schemaCmd() *cobra.Command {
	return &cobra.Command{
		Use: "schema", Short: "print the JSON Schema of a spec",
		Example: "  berth schema > berth.schema.json",
		RunE: func(*cobra.Command, []string) error {
			s, err := spec.Schema()
			if err != nil {
				return err
			}
			_, err = a.Out.Write(s)
			return err
		},
	}
}

func (a *app) setCmd() *cobra.Command {
	c := &cobra.Command{
		Use: "set NAME KEY=VALUE…", Short: "change a node's limits, live", Args: cobra.MinimumNArgs(2),
		Long: `Change limits of a node, live if it runs: each is written, read back from the kernel, and
kept for the next start. VALUE max clears a limit. Keys:
  cpu.weight cpu.max cpu.set memory.max memory.high memory.low memory.swap pids
  hugepages.SIZE io.NAME.read.rate io.NAME.read.iops io.NAME.write.rate io.NAME.write.iops`,
		Example: "  berth set wn-001 cpu.max=1.5 memory.max=2GiB\n  berth set wn-001 io.data.read.rate=25MB/s\n  berth set wn-001 pids=max",
		RunE: func(cmd *cobra.Command, args []string) error {
			b, err := a.open()
			if err != nil {
				return err
			}
			var changes []node.KeyValue
			for _, kv := range args[1:] {
				k, v, ok := strings.Cut(kv, "=")
				if !ok || k == "" || v == "" {
					return refuse.Invalidf("%q: want KEY=VALUE", kv)
				}
				changes = append(changes, node.KeyValue{Key: k, Value: v})
			}
			done, err := b.Set(cmd.Context(), args[0], changes)
			if a.json {
				if err := a.printJSON(done); err != nil {
					return err
				}
				return err
			}
			for _, d := range done {
				fmt.Fprintf(a.Out, "%s\n", d)
			}
			return err
		},
	}
	return a.jsonFlag(c)
}

func (a *app) repairCmd() *cobra.Command {
	c := &cobra.Command{
		Use: "repair", Short: "undo what killed commands left",
		Long: `Undo what killed commands left: a creation that was interrupted is rolled back, a removal
is finished, a set ends at the old or the new value, a node whose process 1 ended unseen is
cleaned up, and the keeper is started again. It waits for commands that are at work.`,
		Example: "  berth repair",
		RunE: func(cmd *cobra.Command, _ []string) error {
			b, err := a.open()
			if err != nil {
				return err
			}
			did, err := b.Repair(cmd.Context())
			if a.json {
				if did == nil {
					did = []node.Repaired{}
				}
				if perr := a.printJSON(did); perr != nil {
					return perr
				}
				return err
			}
			for _, d := range did {
				fmt.Fprintln(a.Out, strings.TrimSpace(d.Node+" "+d.Did))
			}
			if len(did) == 0 && err == nil {
				fmt.Fprintln(a.Out, "nothing to repair")
			}
			return err
		},
	}
	return a.jsonFlag(c)
}

func (a *app) keeperCmd() *cobra.Command {
	return &cobra.Command{
		Use: "keeper", Short: "watch the nodes of this host (started by the other commands)", Hidden: true,
		Long: "Started by the first node and gone with the last: it brings links home, writes exit\nstatus and restarts nodes. No need to call it.",
		RunE: func(cmd *cobra.Command, _ []string) error {
			b, err := a.open()
			if err != nil {
				return err
			}
			return b.Keep(cmd.Context(), os.NewFile(3, "ready"))
		},
	}
}
