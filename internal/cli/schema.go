package cli

import (
	"github.com/spf13/cobra"

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
