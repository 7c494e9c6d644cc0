// Command gendocs writes the man pages of berth's command tree into a folder.
//
//	go run ./tools/gendocs build/man
package main

import (
	"fmt"
	"os"

	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"

	"berth/internal/cli"
	"berth/internal/sys/version"
)

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: gendocs FOLDER")
		os.Exit(2)
	}
	if err := manPages(cli.NewRoot(), os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, "gendocs:", err)
		os.Exit(1)
	}
}

// manPages writes a page for each command that is not hidden: berth.1, berth-run.1 … Their date is taken from
// SOURCE_DATE_EPOCH, so the same source gives the same pages.
func manPages(root *cobra.Command, dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("write man pages: %w", err)
	}
	prepare(root)
	header := &doc.GenManHeader{Section: "1", Source: "Berth " + version.Berth, Manual: "Berth"}
	if err := doc.GenManTree(root, header, dir); err != nil {
		return fmt.Errorf("write man pages into %s: %w", dir, err)
	}
	return nil
}

// prepare omits cobra's "auto generated" line.
func prepare(root *cobra.Command) { root.DisableAutoGenTag = true }
