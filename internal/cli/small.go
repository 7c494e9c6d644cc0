package cli

import (
	"fmt"
	"io"
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
		Long: `Print the JSON Schema of a spec, for editors that complete and check YAML. It
knows every key, its type and what is allowed; berth plan says what this host
can do.`,
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
		Long: `Change limits of a node, live if it runs: each is written, read back from the
kernel, and kept for the next start; all or none. VALUE max clears a limit.
Keys:
  cpu.weight cpu.max cpu.set cpu.numa
  memory.max memory.high memory.low memory.min memory.swap
  pids hugepages.SIZE rlimits.NAME restart
  io.NAME.weight
  io.NAME.read.rate io.NAME.read.iops io.NAME.write.rate io.NAME.write.iops
  net.INTERFACE.tx net.INTERFACE.rx
  devices+=PATH[:PATH INSIDE][:ACCESS][:unsafe] devices-=PATH
A device appears in the node's /dev, or vanishes from it; one that a process of
the node has open is not taken away.`,
		ValidArgsFunction: a.setKeys,
		Example: `  berth set wn-001 cpu.max=1.5 memory.max=2GiB
  berth set wn-001 io.data.read.rate=25MB/s
  berth set wn-001 net.eth0.tx=1Gbit/s net.eth0.rx=max
  berth set wn-001 devices+=/dev/sdb:/dev/data:r`,
		RunE: func(cmd *cobra.Command, args []string) error {
			b, err := a.open()
			if err != nil {
				return err
			}
			var changes []node.KeyValue
			for _, kv := range args[1:] {
				k, v, ok := strings.Cut(kv, "=")
				if !ok || k == "" || v == "" {
					return refuse.Invalidf("%q: want KEY=VALUE, for example cpu.max=1.5", kv)
				}
				changes = append(changes, node.KeyValue{Key: k, Value: v})
			}
			done, err := b.Set(cmd.Context(), args[0], changes)
			if err != nil {
				return err
			}
			if a.json {
				return a.printJSON(done)
			}
			return printSet(a.Out, columns(a.Out), done)
		},
	}
	return a.jsonFlag(c)
}

func printSet(out io.Writer, width int, done []node.SetResult) error {
	var rows [][]string
	for _, d := range done {
		row := []string{d.Key, d.Asked, "from the next start", ""}
		if d.ReadBack != "" {
			row = []string{d.Key, d.Asked, "read back " + d.ReadBack, d.By}
		}
		rows = append(rows, row)
	}
	if len(rows) == 0 {
		return nil
	}
	return printRows(out, width, rows)
}

func (a *app) repairCmd() *cobra.Command {
	c := &cobra.Command{
		Use: "repair", Short: "undo what killed commands left",
		Long: `Undo what killed commands left: a creation that was interrupted is rolled back,
a removal is finished, a set ends at the old or the new value, a node whose
process 1 ended unseen is cleaned up, and the keeper is started again. It waits
for commands that are at work.`,
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
