package sitecli

import (
	"errors"
	"fmt"
	"io/fs"
	"os"

	"github.com/spf13/cobra"

	"berth/internal/spec/template"
	"berth/internal/sys/refuse"
	"berth/internal/sys/text"
)

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
