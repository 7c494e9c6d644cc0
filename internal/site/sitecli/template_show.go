package sitecli

import (
	"fmt"
	"maps"
	"slices"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"berth/internal/spec/template"
	"berth/internal/sys/text"
)

func (a *app) templateShow() *cobra.Command {
	return a.jsonFlag(&cobra.Command{
		Use: "show NAME", Short: "show what a template lets operators choose", Args: cobra.ExactArgs(1),
		Long:    "Show the parameters of a template: what each sets, its type and bounds, and its\ndefault. With --json the whole template.",
		Example: "  berth template show job",
		RunE: func(_ *cobra.Command, args []string) error {
			dir, err := a.folder("templates")
			if err != nil {
				return err
			}
			t, err := template.Read(dir, args[0])
			if err != nil {
				return err
			}
			if a.json {
				return a.printJSON(t)
			}
			fmt.Fprintf(a.Out, "%s: %s\n", t.Name, text.OrDash(t.Description))
			w := tabwriter.NewWriter(a.Out, 0, 0, 2, ' ', 0)
			fmt.Fprintln(w, "PARAMETER\tSETS\tDEFAULT\tTAKES")
			for _, name := range slices.Sorted(maps.Keys(t.Parameters)) {
				p, standard := t.Parameters[name], "-"
				if p.Default != nil {
					standard = string(*p.Default)
				}
				fmt.Fprintf(w, "%s\t%s\t%s\t%s\n", name, p.Sets, standard, p.Bounds())
			}
			return w.Flush()
		},
	})
}
