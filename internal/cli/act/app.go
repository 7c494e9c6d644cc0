// Package act is the commands restart, pause, unpause, kill and wait, and those that print what nodes wrote (logs), what happened
// to them (events) and what the agent was asked for (audit).
package act

import (
	"context"
	"io"

	"github.com/spf13/cobra"

	"berth/internal/node"
)

// App has what the commands share with the rest of the command line.
type App struct {
	Out, Err  io.Writer
	JSON      *bool // --json
	Open      func() *node.Berth
	ToStart   func() (*node.Berth, error)
	Attended  func(context.Context) *node.Berth
	Names     func(most int, states ...string) cobra.CompletionFunc
	Each      func(names []string, do func(string) error) error // one after another
	EachNode  func(b *node.Berth, names []string, do func(name string, out io.Writer) error) error
	JSONFlag  func(*cobra.Command) *cobra.Command
	PrintJSON func(any) error
	PrintLine func(any) error
}
