package sitecli

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"slices"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"berth/internal/spec/template"
	"berth/internal/sys/refuse"
	"berth/internal/sys/text"
)

// templateCmd returns the command berth template.
func (a *app) templateCmd() *cobra.Command {
	c := &cobra.Command{
		Use: "template", Short: "the templates from which operators make nodes",
		Long: `The templates that admins keep in /etc/berth/templates, from which operators make
nodes. A template is a spec, and parameters with types and bounds. Mounts,
devices, ids and privileges come from the template alone, and limits are only
lowered. Whoever can write a template is root.`,
		Example: "  berth template check job.yaml\n  berth template ls\n  berth template show job",
	}
	c.AddCommand(a.templateCheck(), a.templateLs(), a.templateShow())
	return c
}

func (a *app) templateCheck() *cobra.Command {
	return &cobra.Command{
		Use: "check FILE...", Short: "check templates before they are put in their place", Args: cobra.MinimumNArgs(1),
		Long:    "Read templates, and say all that is wrong with each, with its line and column.\nIt looks at nothing of this host: whether the images and disks are there is seen\nwhen a node is made.",
		Example: "  berth template check job.yaml",
		RunE: func(_ *cobra.Command, files []string) error {
			var wrong []error
			for _, name := range files {
				data, err := os.ReadFile(name)
				if errors.Is(err, fs.ErrNotExist) {
					err = refuse.NotFoundf("there is no file %s", name)
				}
				var t *template.Template
				if err == nil {
					t, err = template.Parse(name, data)
				}
				if err != nil {
					wrong = append(wrong, err)
					continue
				}
				fmt.Fprintf(a.Out, "%s: a template with %s\n", name, text.Count(len(t.Parameters), "parameter"))
			}
			return refuse.Join(wrong)
		},
	}
}

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
