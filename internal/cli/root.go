// Package cli is Berth's command line. Each command prints text for people, and JSON for programs.
//
// Rules of output: data goes to stdout, everything else to stderr; progress only to a terminal; no colour.
package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"berth/internal/layout"
	"berth/internal/node"
	"berth/internal/oci"
	"berth/internal/refuse"
	"berth/internal/space"
	"berth/internal/spec"
	"berth/internal/vnode"
)

// Version is the version of Berth, set when it is built.
var Version = "devel"

// Streams are what a command reads and writes.
type Streams struct {
	In       *os.File
	Out, Err io.Writer
}

// app holds what the commands share: the streams, the persistent flags, and the exit code.
type app struct {
	Streams
	root string
	json bool
	code int // exit code of a node's own command (run, exec), or of plan --detailed-exitcode
}

// ownFailure is the exit code of run and exec when Berth itself fails, as in podman.
const ownFailure = 125

// Main runs one command line and returns its exit code.
func Main(ctx context.Context, args []string, s Streams) int {
	s.Out = &visible{w: s.Out}
	a := &app{Streams: s}
	root := a.command()
	root.SetArgs(args)
	root.SetIn(s.In)
	root.SetOut(s.Out)
	root.SetErr(s.Err)
	cmd, err := root.ExecuteContextC(ctx)
	if err == nil {
		return a.code
	}
	dirs := layout.New(a.root)
	printError(&visible{w: s.Err}, space.Name(err, dirs.Run, dirs.Lib))
	return exitCode(cmd, err)
}

func exitCode(cmd *cobra.Command, err error) int {
	passes := cmd.Annotations["passes-exit-code"] != ""
	var ce *oci.CommandError
	if errors.As(err, &ce) && passes {
		return ce.Code
	}
	if passes {
		return ownFailure
	}
	return int(refuse.KindOf(err))
}

// NewRoot returns the whole command tree, for man pages and completion.
func NewRoot() *cobra.Command {
	a := &app{Streams: Streams{In: os.Stdin, Out: os.Stdout, Err: os.Stderr}}
	return a.command()
}

func (a *app) command() *cobra.Command {
	root := &cobra.Command{
		Use:   "berth",
		Short: "virtual nodes on this host, each with its own identity and proved limits",
		Long: `Berth runs virtual nodes: containers that are machines of their own on the
network, with hard limits of CPU, memory and block I/O that are read back from
the kernel, and measures what a node costs against the bare host.

Exit codes: 0 done; 1 failed; 2 wrong usage or an invalid spec; 3 this host
cannot; 4 no such node, image or device; 5 it exists or is busy; 6 plan
--detailed-exitcode would change something. run and exec pass on the command's
own code; their own failures are 125 (Berth), 126 (the command cannot be run),
127 (it is not there).

make install puts man pages (man berth-run) and documents beside the program:
in /usr/local/share/doc/berth, if that is where it was installed.`,
		Example: `  berth doctor                          what this host can do
  berth run --image host -- hostname    a throw-away node
  berth apply -f node.yaml              make a node as its spec says
  berth show wn-001                     its limits, as the kernel has them`,
		Version:       Version,
		SilenceUsage:  true,
		SilenceErrors: true,

		CompletionOptions:          cobra.CompletionOptions{DisableDefaultCmd: true},
		SuggestionsMinimumDistance: 2,
	}
	root.PersistentFlags().StringVar(&a.root, "root", "", "keep everything of its own under `DIR` instead of /run/berth and /var/lib/berth")
	_ = root.MarkPersistentFlagDirname("root") // fails only for an unknown flag
	root.SetFlagErrorFunc(flagError)
	root.SetHelpFunc(func(c *cobra.Command, _ []string) { writeHelp(a.Out, c) })
	root.SetUsageFunc(func(c *cobra.Command) error { writeUsage(a.Out, c); return nil })
	for _, g := range groups() {
		root.AddGroup(&cobra.Group{ID: g.id, Title: g.title})
	}
	root.AddCommand(under("life",
		a.applyCmd(), a.runCmd(), a.execCmd(), a.setCmd(), a.startCmd(), a.stopCmd(), a.rmCmd())...)
	root.AddCommand(under("look", a.planCmd(), a.lsCmd(), a.showCmd(), a.topCmd(), a.logsCmd())...)
	root.AddCommand(under("host",
		a.doctorCmd(), a.imageCmd(), a.vfCmd(), a.netCmd(), a.benchCmd(), a.protectCmd(), a.unprotectCmd(), a.repairCmd(), a.schemaCmd(), a.completionCmd())...)
	root.AddCommand(a.keeperCmd())
	root.SetHelpCommand(helpCmd())
	root.InitDefaultHelpCmd()
	checkArgs(root)
	return root
}

// jsonFlag adds the flag --json to a command.
func (a *app) jsonFlag(c *cobra.Command) *cobra.Command {
	c.Flags().BoolVar(&a.json, "json", false, "print JSON")
	return c
}

func (a *app) open() (*node.Berth, error) {
	dir := a.root
	if dir != "" {
		abs, err := filepath.Abs(dir)
		if err != nil {
			return nil, refuse.Invalidf("root %s: %w", dir, err)
		}
		dir = abs
	}
	return node.Open(dir)
}

func (a *app) printJSON(v any) error {
	enc := json.NewEncoder(a.Out)
	enc.SetIndent("", "  ")
	enc.SetEscapeHTML(false)
	return enc.Encode(v)
}

// readSpecs reads the nodes of a file; "-" is standard input.
func (a *app) readSpecs(ctx context.Context, file string) ([]*vnode.Node, error) {
	dir := filepath.Dir(file)
	if file == "-" {
		dir = "."
	}
	data, err := a.readSpec(ctx, file)
	if err != nil {
		return nil, refuse.Invalidf("read spec: %w", err)
	}
	nodes, err := spec.ParseHinted(file, data, func(text string) string { return a.imageHint(text, dir) })
	if err != nil {
		return nil, err
	}
	if dir, err = filepath.Abs(dir); err != nil {
		return nil, fmt.Errorf("find the folder of %s: %w", file, err)
	}
	for _, n := range nodes {
		spec.Resolve(n, dir)
		vnode.Defaults(n)
	}
	return nodes, nil
}

// readSpec reads at most one byte more than a spec may have, because the file may be endless. If it is a pipe to which
// nobody writes, readSpec waits until ctx ends.
func (a *app) readSpec(ctx context.Context, file string) ([]byte, error) {
	type answer struct {
		data []byte
		err  error
	}
	read := make(chan answer, 1)
	go func() {
		f := a.In
		if file != "-" {
			opened, err := os.Open(file)
			if err != nil {
				read <- answer{err: err}
				return
			}
			defer opened.Close()
			f = opened
		}
		data, err := io.ReadAll(io.LimitReader(f, spec.LongestFile+1))
		read <- answer{data, err}
	}()
	select {
	case r := <-read:
		return r.data, r.err
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}
