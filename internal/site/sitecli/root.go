// Package sitecli is the program berth-site: the commands berth certs, host, template and slurm, and what --host carries out on
// another host. berth becomes it by exec, so that HTTP and TLS do not slow each start of berth.
package sitecli

import (
	"context"
	"encoding/json"
	"io"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"berth/internal/sys/help"
	"berth/internal/sys/layout"
	"berth/internal/sys/refuse"
	"berth/internal/sys/text"
	"berth/internal/sys/version"
)

// Streams are what a command reads and writes.
type Streams struct {
	In       *os.File
	Out, Err io.Writer
}

// app has what the commands share.
type app struct {
	Streams
	root string // as berth --root
	host string // as berth --host; "": the agent of this host
	json bool
	code int // exit code of a relayed command
}

// Main runs one command line and returns its exit code.
func Main(ctx context.Context, args []string, s Streams) int {
	a := &app{Streams: s}
	a.Out, a.Err = text.NewVisible(s.Out), text.NewVisible(s.Err)
	root := a.command()
	root.SetArgs(args)
	root.SetIn(s.In)
	root.SetOut(a.Out)
	root.SetErr(a.Err)
	if err := root.ExecuteContext(ctx); err != nil {
		help.PrintError(a.Err, err)
		if a.code != 0 {
			return a.code
		}
		return int(refuse.KindOf(err))
	}
	return a.code
}

func (a *app) command() *cobra.Command {
	root := &cobra.Command{
		Use: "berth", Short: "hosts, certificates, templates and the batch system of a site", // it is berth that users typed
		Version: version.Berth, SilenceUsage: true, SilenceErrors: true,
		CompletionOptions:          cobra.CompletionOptions{DisableDefaultCmd: true},
		SuggestionsMinimumDistance: 2,
	}
	root.PersistentFlags().StringVar(&a.root, "root", "", "keep everything of its own under `DIR` instead of /run/berth and /var/lib/berth")
	root.PersistentFlags().StringVar(&a.host, "host", "", "the host to ask, `NAME`[:PORT] or unix:SOCKET (default: this one)")
	root.SetFlagErrorFunc(help.FlagError)
	root.SetHelpFunc(func(c *cobra.Command, _ []string) { help.Write(a.Out, c) })
	root.SetUsageFunc(func(c *cobra.Command) error { help.WriteUsage(a.Out, c); return nil })
	root.AddCommand(a.commands()...)
	root.SetHelpCommand(help.Command())
	help.CheckArgs(root)
	return root
}

// commands lists what berth-site can do. Each file of this package adds its own here.
func (a *app) commands() []*cobra.Command {
	return []*cobra.Command{a.commandCmd(), a.certsCmd(), a.templateCmd(), a.hostCmd(), a.slurmCmd()}
}

// layout returns where Berth keeps its files.
func (a *app) layout() (layout.Layout, error) {
	if a.root == "" {
		return layout.New(""), nil
	}
	path, err := filepath.Abs(a.root)
	return layout.New(path), err
}

// jsonFlag adds the flag --json to a command.
func (a *app) jsonFlag(c *cobra.Command) *cobra.Command {
	c.Flags().BoolVar(&a.json, "json", false, "print JSON")
	return c
}

// printJSON writes v as JSON.
func (a *app) printJSON(v any) error {
	enc := json.NewEncoder(a.Out)
	enc.SetIndent("", "  ")
	enc.SetEscapeHTML(false)
	return enc.Encode(v)
}
