package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"reflect"

	"github.com/spf13/cobra"

	"berth/internal/node"
	"berth/internal/node/protect"
	"berth/internal/site/hostapi"
	"berth/internal/sys/jsonfile"
	"berth/internal/sys/layout"
	"berth/internal/sys/refuse"
)

// Streams are what a command reads and writes.
type Streams struct {
	In       *os.File
	Out, Err io.Writer
}

// app holds what the commands share: the streams, the persistent flags, and the exit code.
type app struct {
	Streams
	root folder
	json bool
	code int // exit code of a node's own command (run, exec), or of plan --detailed-exitcode
}

// jsonFlag adds the flag --json to a command.
func (a *app) jsonFlag(c *cobra.Command) *cobra.Command {
	c.Flags().BoolVar(&a.json, "json", false, "print JSON")
	return c
}

// folder is the value of a flag that names a folder: the absolute path, or "".
type folder string

func (f *folder) String() string { return string(*f) }

// Type is what the help and man pages print for a flag without a default.
func (f *folder) Type() string { return "string" }

func (f *folder) Set(path string) (err error) {
	if path != "" {
		path, err = filepath.Abs(path)
		err = errors.Join(err, jsonfile.CheckText("the path", path)) // journals name what lies below it
	}
	*f = folder(path)
	return err
}

// layout returns where this Berth keeps its files.
func (a *app) layout() layout.Layout { return layout.New(string(a.root)) }

// openToStart is open for a command that makes or starts nodes. It first refuses a root that nodes could not reach.
func (a *app) openToStart() (*node.Berth, error) {
	if err := a.layout().Reachable(); err != nil {
		return nil, err
	}
	return a.open(), nil
}

// open opens the nodes, with what the host has besides them.
func (a *app) open() *node.Berth { return a.openAt(string(a.root)) }

func (a *app) openAt(root string) *node.Berth {
	return hostapi.Nodes(layout.New(root), func(name, what string) { fmt.Fprintf(a.Err, "berth: node %s: %s\n", name, what) })
}

// services opens the protected services.
func (a *app) services() *protect.Services { return protect.New(a.layout()) }

// printJSON writes v as JSON. A list that was never filled is [].
func (a *app) printJSON(v any) error {
	if list := reflect.ValueOf(v); list.Kind() == reflect.Slice && list.IsNil() {
		v = []struct{}{}
	}
	enc := json.NewEncoder(a.Out)
	enc.SetIndent("", "  ")
	enc.SetEscapeHTML(false)
	return enc.Encode(v)
}

// printLine writes v as JSON in one line.
func (a *app) printLine(v any) error {
	enc := json.NewEncoder(a.Out)
	enc.SetEscapeHTML(false)
	return enc.Encode(v)
}

// attended opens the Berth for a command that only reads. If the keeper was killed, attended starts it again and says so
// on standard error.
func (a *app) attended(ctx context.Context) *node.Berth {
	b := a.open()
	if note := b.Attend(ctx); note != "" {
		fmt.Fprintln(a.Err, "berth: "+note)
	}
	return b
}

// each calls do with every name, one after another, goes on after a failure, and joins the failures. The exit code is that of the first
// failure.
func each(names []string, do func(string) error) error {
	var all []error
	for _, n := range names {
		if err := do(n); err != nil {
			all = append(all, err)
		}
	}
	return refuse.Join(all)
}
