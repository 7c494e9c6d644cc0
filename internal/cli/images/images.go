// Package images is the commands berth image pack and trust: images that are one file.
package images

import (
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"berth/internal/image"
	"berth/internal/sys/text"
)

// App has what the commands share with the rest of the command line.
type App struct {
	Out, Err  io.Writer
	JSON      *bool // --json
	Store     func() image.Store
	Names     cobra.CompletionFunc // of stored images
	JSONFlag  func(*cobra.Command) *cobra.Command
	PrintJSON func(any) error
}

func (a App) say(r image.Record) error {
	if *a.JSON {
		return a.PrintJSON(r)
	}
	_, err := fmt.Fprintf(a.Out, "%s: %s, %s, %.12s\n", r.Name, r.Packed, text.Human(r.Size), strings.TrimPrefix(r.Manifest, "sha256:"))
	return err
}
