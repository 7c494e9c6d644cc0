package sitecli

import "github.com/spf13/cobra"

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
