package cli

import (
	"strings"

	"github.com/spf13/cobra"

	"berth/internal/cli/show"
	"berth/internal/node"
	"berth/internal/sys/refuse"
	"berth/internal/sys/text"
)

func (a *app) setCmd() *cobra.Command {
	c := &cobra.Command{
		Use: "set NAME KEY=VALUE…", Short: "change a node's limits, live", Args: cobra.MinimumNArgs(2),
		Long: `Change limits of a node, live if it runs: each is written, read back from the
kernel, and kept for the next start; all or none. VALUE max clears a limit.
Keys:
  cpu.weight cpu.max cpu.set cpu.numa
  memory.max memory.high memory.low memory.min memory.swap machine.memory
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
			b := a.open()
			changes, err := keyValues(args[1:])
			if err != nil {
				return err
			}
			done, err := b.Set(cmd.Context(), args[0], changes)
			if err != nil {
				return err
			}
			if a.json {
				return a.printJSON(done)
			}
			return show.Set(a.Out, text.Columns(a.Out), done)
		},
	}
	return a.jsonFlag(c)
}

// keyValues reads the changes of berth set.
func keyValues(args []string) ([]node.KeyValue, error) {
	var all []node.KeyValue
	for _, kv := range args {
		k, v, ok := strings.Cut(kv, "=")
		if !ok || k == "" || v == "" {
			return nil, refuse.Invalidf("%q: want KEY=VALUE, for example cpu.max=1.5", kv)
		}
		all = append(all, node.KeyValue{Key: k, Value: v})
	}
	return all, nil
}
