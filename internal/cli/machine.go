package cli

import (
	"github.com/spf13/cobra"

	"berth/internal/runner/machine"
)

func (a *app) machineCmd() *cobra.Command {
	return &cobra.Command{
		Use: machine.Command + " STAGE", Args: cobra.ExactArgs(1), Short: "run a virtual machine (started by the node's start)", Hidden: true,
		Long:        "Started by the start of a node of kind machine, and gone with it. No need to call it.",
		Annotations: map[string]string{"passes-exit-code": "yes"},
		RunE: func(_ *cobra.Command, args []string) (err error) {
			a.code, err = machine.Main(args[0])
			return err
		},
	}
}
