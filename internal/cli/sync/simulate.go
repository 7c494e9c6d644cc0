package sync

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"berth/internal/site/iosync/simulate"
	"berth/internal/sys/refuse"
	"berth/internal/sys/text"
)

func (c Commands) simulate() *cobra.Command {
	var p simulate.Plan
	s := &cobra.Command{
		Use: "simulate", Short: "play how allowances follow the load over many servers", Args: cobra.NoArgs,
		Long: `Play how the allowances of many nodes are split over the servers of a file
system, in memory: nothing of this host is touched or measured. It is the code
that splits them: servers report to the allocator as they do in a site. A fifth
of the time each: nodes load all their servers, then one, then another one, then
some servers are silent, then all servers again.

Of each round it prints what nodes got of what they may and would do (all
together, and the node that one in a hundred is below), and the most that
servers enforced for one node, in parts of its allowance.

Exit codes: 2 a number that is out of range.`,
		Example:           "  berth sync simulate\n  berth sync simulate --nodes 10000 --servers 500 --each 8 --json",
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, _ []string) error {
			for _, n := range []struct {
				flag            string
				is, least, most int
			}{{"nodes", p.Nodes, 1, 1_000_000}, {"servers", p.Servers, 1, 100_000}, {"each", p.Each, 1, p.Servers}, {"seconds", p.Seconds, 5, 3600}} {
				if n.is < n.least || n.is > n.most {
					return refuse.Invalidf("--%s %d: want %d to %d", n.flag, n.is, n.least, n.most)
				}
			}
			for flag, part := range map[string]float64{"lost": p.Lost, "silent": p.Silent} {
				if !(part >= 0 && part <= 1) { // also not a number
					return refuse.Invalidf("--%s %g: want 0 to 1", flag, part)
				}
			}
			if p.Nodes*p.Each > 10_000_000 {
				return refuse.Invalidf("%d nodes on %d servers each are too many pairs to play: at most 10 million", p.Nodes, p.Each)
			}
			r, err := simulate.Run(cmd.Context(), p)
			if err != nil {
				return err
			}
			if *c.JSON {
				return c.PrintJSON(r)
			}
			return c.played(r)
		},
	}
	f := s.Flags()
	f.IntVar(&p.Nodes, "nodes", 1000, "`N` nodes")
	f.IntVar(&p.Servers, "servers", 50, "`N` file servers")
	f.IntVar(&p.Each, "each", 8, "`N` servers that a node uses")
	f.IntVar(&p.Seconds, "seconds", 50, "play for `N` seconds of the world's time")
	f.Float64Var(&p.Lost, "lost", 0.01, "`PART` of the messages to servers that is lost")
	f.Float64Var(&p.Silent, "silent", 0.05, "`PART` of the servers that is silent for a while")
	f.Uint64Var(&p.Seed, "seed", 1, "`N` that all chance comes from")
	return c.JSONFlag(s)
}

// lines is how many rounds the table shows, about.
const lines = 30

// played prints the rounds with a bar for what all nodes got. Rounds after a change are all printed.
func (c Commands) played(r *simulate.Result) error {
	fmt.Fprintf(c.Out, "%s, %s, %s\n\n", text.Count(r.Plan.Nodes, "node"), text.Count(r.Plan.Servers, "server"), text.Count(r.Pairs, "pair"))
	rows := [][]string{{"SECOND", "GOT", "", "WORST", "MOST", "LOAD"}}
	changed, load := 0, ""
	for i, one := range r.Rounds {
		if one.Load != load {
			changed, load = i, one.Load
		}
		if i-changed > 3 && (i+1)%max(1, len(r.Rounds)/lines) != 0 {
			continue
		}
		name := load
		if one.Silent > 0 {
			name = fmt.Sprintf("%s (%d)", load, one.Silent)
		}
		percent := func(f float64) string { return fmt.Sprintf("%.1f %%", 100*f) }
		rows = append(rows, []string{fmt.Sprintf("%.1f", one.Second), percent(one.Got), strings.Repeat("█", int(20*one.Got+0.5)), percent(one.Worst), percent(one.Most), name})
	}
	if err := text.Rows(c.Out, text.Columns(c.Out), rows); err != nil {
		return err
	}
	back := fmt.Sprintf("after a change of load, all nodes together had 95 %% again within %.1f s", r.Back)
	if r.Back < 0 {
		back = "after a change of load, all nodes together did not get to 95 % again"
	}
	fmt.Fprintf(c.Out, "\n%s\nno node was allowed more than %.2f %% of its allowance\nthe slowest answer to a server took %.1f ms\n", back, 100*r.Most, 1000*r.Slow)
	return nil
}
