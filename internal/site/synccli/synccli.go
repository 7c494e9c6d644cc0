// Package synccli is the program berth-sync: berth sync audit, which loads programs of BPF, and the guard of processes that the
// agent holds. berth becomes it by exec, so that reading the kernel's types does not slow each start of berth.
package synccli

import (
	"context"
	"io"

	"github.com/spf13/cobra"

	"berth/internal/sys/help"
	"berth/internal/sys/refuse"
	"berth/internal/sys/text"
	"berth/internal/sys/version"
)

// Main runs one command line and returns its exit code.
func Main(ctx context.Context, args []string, out, errs io.Writer) int {
	out, errs = text.NewVisible(out), text.NewVisible(errs)
	root := &cobra.Command{
		Use: "berth-sync", Short: "look at what file servers do for nodes",
		Version: version.Berth, SilenceUsage: true, SilenceErrors: true,
		CompletionOptions:          cobra.CompletionOptions{DisableDefaultCmd: true},
		SuggestionsMinimumDistance: 2,
	}
	root.SetArgs(args)
	root.SetOut(out)
	root.SetErr(errs)
	root.SetFlagErrorFunc(help.FlagError)
	root.SetHelpFunc(func(c *cobra.Command, _ []string) { help.Write(out, c) })
	root.SetUsageFunc(func(c *cobra.Command) error { help.WriteUsage(out, c); return nil })
	root.AddCommand(audit(out), guard(out))
	root.SetHelpCommand(help.Command())
	help.CheckArgs(root)
	if err := root.ExecuteContext(ctx); err != nil {
		help.PrintError(errs, err)
		return int(refuse.KindOf(err))
	}
	return 0
}
