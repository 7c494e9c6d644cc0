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

func (a *app) templateLs() *cobra.Command {
	return a.jsonFlag(&cobra.Command{
		Use: "ls", Short: "list the templates of this host",
		Long:    "List the templates in /etc/berth/templates. One that cannot be used is listed with\nthe reason.",
		Example: "  berth template ls",
		RunE: func(*cobra.Command, []string) error {
			dir, err := a.folder("templates")
			if err != nil {
				return err
			}
			names, err := template.Names(dir)
			if err != nil {
				return err
			}
			type row struct {
				Name        string   `json:"name"`
				Description string   `json:"description,omitempty"`
				Parameters  []string `json:"parameters"`
				Error       string   `json:"error,omitempty"`
			}
			rows := []row{}
			for _, name := range names {
				r := row{Name: name, Parameters: []string{}}
				if t, err := template.Read(dir, name); err != nil {
					r.Error = err.Error()
				} else {
					r.Description, r.Parameters = t.Description, slices.AppendSeq(r.Parameters, maps.Keys(t.Parameters))
					slices.Sort(r.Parameters)
				}
				rows = append(rows, r)
			}
			if a.json {
				return a.printJSON(rows)
			}
			w := tabwriter.NewWriter(a.Out, 0, 0, 2, ' ', 0)
			fmt.Fprintln(w, "NAME\tPARAMETERS\tIS")
			for _, r := range rows {
				is := text.OrDash(r.Description)
				if r.Error != "" {
					is = "cannot be used: " + r.Error
				}
				fmt.Fprintf(w, "%s\t%d\t%s\n", r.Name, len(r.Parameters), is)
			}
			return w.Flush()
		},
	})
}
