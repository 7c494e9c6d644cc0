package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"berth/internal/cli/screen"
	"berth/internal/node/top"
	"berth/internal/sys/refuse"
	"berth/internal/sys/text"
)

// topFlags are the flags of berth top.
type topFlags struct {
	interval time.Duration
	samples  int // 0: without end
	plain    bool
	sort     string
}

// leastInterval keeps a mistyped interval from taking a whole CPU. The kernel's counters are not much finer either.
const leastInterval = 100 * time.Millisecond

func (f *topFlags) check() error {
	switch {
	case f.interval < leastInterval:
		return refuse.Invalidf("--interval %s: at least %s", f.interval, leastInterval)
	case f.samples < 0:
		return refuse.Invalidf("--samples %d: a whole number above 0", f.samples)
	case !slices.Contains(screen.Sorts(), f.sort):
		return refuse.Invalidf("--sort %s: one of %s", f.sort, strings.Join(screen.Sorts(), ", "))
	}
	return nil
}

func (a *app) topCmd() *cobra.Command {
	var f topFlags
	c := &cobra.Command{
		Use: "top [NAME…]", Short: "what the nodes use now: CPU, memory, disks, network", Args: cobra.ArbitraryArgs,
		Long: `Show what the running nodes use, again and again: CPU, memory, how long tasks
waited (cpu mem io: % of the time, PSI), what they read and write, and what
their interfaces carry. On a terminal the table is redrawn in place; keys:
  c m r w i n p a   sort by cpu, memory, read, write, io, net, pressure, name
  d                 with or without a line for each disk in use
  arrows, space     move through a long list; at once, without waiting
  q                 quit
Rates are those of the interval. What the kernel does not count here is "-";
share/doc/berth/top.md says what needs which kernel.`,
		Example: `  berth top
  berth top -n 1 --sort read              one table, after an interval
  berth top wn-001 --interval 500ms
  berth top --json | jq .nodes[].cpu_percent`,
		ValidArgsFunction: a.nodeNames(0),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := f.check(); err != nil {
				return err
			}
			b := a.attended(cmd.Context())
			s, err := top.New(cmd.Context(), b, a.services(), args)
			if err != nil {
				return err
			}
			if width := text.Columns(a.Out); width > 0 && !a.json && !f.plain && f.samples == 0 {
				err = screen.Run(cmd.Context(), a.In, a.Out, s, f.interval, f.sort)
			} else {
				err = a.topStream(cmd.Context(), s, f, width)
			}
			if errors.Is(err, context.Canceled) {
				return nil // an interrupt is the normal end
			}
			return err
		},
	}
	c.Flags().DurationVarP(&f.interval, "interval", "i", 2*time.Second, "time between two samples")
	c.Flags().IntVarP(&f.samples, "samples", "n", 0, "print `COUNT` samples, one below the other, and end")
	c.Flags().BoolVar(&f.plain, "plain", false, "print one table below the other, on a terminal too")
	c.Flags().StringVar(&f.sort, "sort", "cpu", "`BY` cpu, memory, read, write, io, net, pressure or name")
	_ = c.RegisterFlagCompletionFunc("sort", cobra.FixedCompletions(screen.Sorts(), cobra.ShellCompDirectiveNoFileComp)) // fails only for an unknown flag
	return a.jsonFlag(c)
}

// topStream prints samples one after the other, as tables or as one JSON object per line. It prints the first one after
// an interval, so that each has rates.
func (a *app) topStream(ctx context.Context, s *top.Sampler, f topFlags, width int) error {
	if _, err := s.Sample(ctx); err != nil {
		return err
	}
	ticks := time.NewTicker(f.interval)
	defer ticks.Stop()
	for n := 0; f.samples == 0 || n < f.samples; n++ {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-ticks.C:
		}
		sample, err := s.Sample(ctx)
		if err != nil {
			return err
		}
		if err := a.printSample(sample, n > 0, width, f.sort); err != nil {
			return err
		}
	}
	return nil
}

func (a *app) printSample(s *top.Sample, follows bool, width int, by string) error {
	if a.json {
		screen.Sort(s.Nodes, by)
		enc := json.NewEncoder(a.Out)
		enc.SetEscapeHTML(false)
		return enc.Encode(s)
	}
	table := strings.Join(screen.Table(s, width, by), "\n") + "\n"
	if follows {
		table = "\n" + table
	}
	_, err := fmt.Fprint(a.Out, table)
	return err
}
