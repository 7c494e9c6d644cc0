package main

import (
	"bytes"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"berth/internal/cli"
)

// widest is the longest allowed line of a help text, in columns of a usual terminal.
const widest = 80

// TestEachCommandIsExplained checks that each command has a one-line description and an example.
func TestEachCommandIsExplained(t *testing.T) {
	root := cli.NewRoot()
	prepare(root)
	each(root, func(c *cobra.Command) {
		name := c.CommandPath()
		if c.Short == "" || strings.HasSuffix(c.Short, ".") || len(c.Short) > 80 {
			t.Errorf("%s: the one-line description is %q: at most 80 letters, no full stop", name, c.Short)
		}
		if c.Runnable() && c.HasParent() && c.Example == "" {
			t.Errorf("%s has no example", name)
		}
		for line := range strings.Lines(c.Long + "\n" + c.Example) {
			if n := utf8.RuneCountInString(strings.TrimSuffix(line, "\n")); n > widest {
				t.Errorf("%s: a line of its help is %d wide: %s", name, n, line)
			}
		}
	})
}

func TestManPages(t *testing.T) {
	t.Setenv("SOURCE_DATE_EPOCH", "1700000000")
	dir := filepath.Join(t.TempDir(), "man")
	root := cli.NewRoot()
	if err := manPages(root, dir); err != nil {
		t.Fatal(err)
	}
	each(root, func(c *cobra.Command) {
		if c.Name() == "help" {
			return // cobra writes no page for it
		}
		page := filepath.Join(dir, strings.ReplaceAll(c.CommandPath(), " ", "-")+".1")
		text, err := os.ReadFile(page)
		if err != nil {
			t.Errorf("%s has no page: %v", c.CommandPath(), err)
			return
		}
		if !bytes.Contains(text, []byte(".SH SYNOPSIS")) || !bytes.Contains(text, []byte("Nov 2023")) {
			t.Errorf("%s is no whole page", page)
		}
	})
}

// TestCompletions generates the completion scripts of the shells for which make install installs them.
func TestCompletions(t *testing.T) {
	for shell, write := range map[string]func(*cobra.Command, io.Writer) error{
		"bash": func(c *cobra.Command, w io.Writer) error { return c.GenBashCompletionV2(w, true) },
		"zsh":  (*cobra.Command).GenZshCompletion,
		"fish": func(c *cobra.Command, w io.Writer) error { return c.GenFishCompletion(w, true) },
	} {
		var b bytes.Buffer
		if err := write(cli.NewRoot(), &b); err != nil || !strings.Contains(b.String(), "berth") {
			t.Errorf("%s: %v, %d bytes", shell, err, b.Len())
		}
	}
}

// each visits the commands that are not hidden.
func each(c *cobra.Command, visit func(*cobra.Command)) {
	if c.Hidden {
		return
	}
	visit(c)
	for _, sub := range c.Commands() {
		each(sub, visit)
	}
}
