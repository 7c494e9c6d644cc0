package cli

import (
	"fmt"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"berth/internal/image"
	"berth/internal/sys/text"
)

func (a *app) imageLsCmd() *cobra.Command {
	return a.jsonFlag(&cobra.Command{
		Use: "ls", Short: "list the images",
		Example: "  berth image ls\n  berth image ls --json",
		RunE: func(*cobra.Command, []string) error {
			all, err := image.Open(a.layout()).List()
			if err != nil {
				return err
			}
			files, err := image.Open(a.layout()).ListPacked()
			if err != nil {
				return err
			}
			all = append(all, files...)
			if a.json {
				return a.printJSON(all)
			}
			w := tabwriter.NewWriter(a.Out, 0, 0, 2, ' ', 0)
			fmt.Fprintln(w, "NAME\tLAYERS\tSIZE\tDIGEST\tIMPORTED")
			for _, r := range all {
				if r.Broken != "" {
					fmt.Fprintf(w, "%s\t-\t-\t-\tbroken: %s; import it again, or berth image rm %s\n", r.Name, r.Broken, r.Name)
					continue
				}
				for _, name := range namesOf(r) {
					fmt.Fprintf(w, "%s\t%d\t%s\t%.12s\t%s ago\n",
						name, len(r.Layers), text.Human(r.Size), strings.TrimPrefix(r.Manifest, "sha256:"), text.Ago(r.Imported))
				}
			}
			return w.Flush()
		},
	})
}

// namesOf returns the names by which a spec can have an image: several files may have the content of one.
func namesOf(r image.Record) (all []string) {
	for _, path := range r.Places {
		if name := "file:" + path; !slices.Contains(all, name) {
			all = append(all, name)
		}
	}
	if len(all) == 0 {
		return []string{r.Name}
	}
	slices.Sort(all)
	return all
}
