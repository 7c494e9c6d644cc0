package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"berth/internal/cli"
)

// document matches the names of documents in help texts: Markdown files and man pages.
var document = regexp.MustCompile(`[A-Za-z/_.-]+\.md\b|\bman (berth[a-z-]*)`)

// TestHelpNamesWhatIsInstalled checks that make install installs each document that a help text names.
func TestHelpNamesWhatIsInstalled(t *testing.T) {
	makeProgram, err := exec.LookPath("make")
	if err != nil {
		t.Skip("needs make")
	}
	cmd := exec.Command(makeProgram, "-n", "install", "PREFIX=/p", "DESTDIR=")
	cmd.Dir = "../.."
	cmd.Env = append(os.Environ(), "MAKEFLAGS=")
	recipe, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	installed := map[string]bool{}
	for line := range strings.Lines(string(recipe)) {
		words := strings.Fields(line)
		if len(words) < 3 || words[0] != "install" || !strings.HasPrefix(words[len(words)-1], "/p/share/doc") {
			continue
		}
		for _, w := range words[1 : len(words)-1] {
			files, _ := filepath.Glob(filepath.Join("../..", w))
			for _, f := range files {
				installed[strings.TrimPrefix(words[len(words)-1], "/p/")+"/"+filepath.Base(f)] = true
			}
		}
	}
	if !installed["share/doc/berth/METHOD.md"] {
		t.Fatalf("make install: METHOD.md is not found among %v of\n%s", installed, recipe)
	}
	found := 0
	each(cli.NewRoot(), func(c *cobra.Command) {
		if c.Name() != "help" {
			installed["man "+strings.ReplaceAll(c.CommandPath(), " ", "-")] = true
		}
	})
	each(cli.NewRoot(), func(c *cobra.Command) {
		text := c.Long + "\n" + c.Short + "\n" + c.Example
		c.Flags().VisitAll(func(f *pflag.Flag) { text += "\n" + f.Usage })
		for _, name := range document.FindAllString(text, -1) {
			found++
			if !installed[name] {
				t.Errorf("%s --help names %s, which make install does not install", c.CommandPath(), name)
			}
		}
	})
	if found == 0 {
		t.Error("no help text names a document: is the pattern right?")
	}
}
