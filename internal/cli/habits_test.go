package cli

import (
	"bytes"
	"context"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"berth/internal/sys/help"
)

// commandLine matches a command line of Berth in a sentence.
var commandLine = regexp.MustCompile(`\bberth( [a-z-][^;,:]*)`)

// TestHabits checks that the answers to commands of other engines name existing commands and flags of Berth.
func TestHabits(t *testing.T) {
	t.Parallel()
	check := func(t *testing.T, text string, atLeast int) {
		t.Helper()
		found := commandLine.FindAllStringSubmatch(text, -1)
		if len(found) < atLeast {
			t.Errorf("%q names no command of Berth's", text)
		}
		for _, m := range found {
			words := strings.Fields(m[1])
			c, _, err := NewRoot().Find(words)
			path := strings.Fields(help.Path(c))
			sub := len(words) > len(path) && !strings.HasPrefix(words[len(path)], "-")
			if err != nil || c.HasSubCommands() && sub {
				t.Errorf("%q: there is no command berth%s", text, m[1])
				continue
			}
			for _, w := range words {
				if w == "--" {
					break
				}
				c.InitDefaultHelpFlag()
				c.InitDefaultVersionFlag()
				if name, long := strings.CutPrefix(w, "--"); long && c.Flags().Lookup(name) == nil {
					t.Errorf("%q: berth %s has no %s", text, help.Path(c), w)
				} else if !long && strings.HasPrefix(w, "-") {
					for _, letter := range w[1:] {
						if c.Flags().ShorthandLookup(string(letter)) == nil {
							t.Errorf("%q: berth %s has no -%c", text, help.Path(c), letter)
						}
					}
				}
			}
		}
	}
	for name, does := range help.Habits() {
		if c, rest, err := NewRoot().Find(strings.Fields(name)); err == nil && c.HasParent() && len(rest) == 0 {
			t.Errorf("%s is a command of Berth's", name)
		}
		check(t, does, 1)
		parent, own, sub := strings.Cut(name, " ")
		if !sub {
			parent, own = "", name
		}
		code, out, stderr := MainOf(t, strings.Fields(name)...)
		want := "berth: " + strings.TrimSpace("berth "+parent) + " has no " + own + ": " + does + "\n"
		if code != 2 || out != "" || stderr != want {
			t.Errorf("berth %s: exit %d, %q, stdout %q\nwant exit 2, %q", name, code, stderr, out, want)
		}
	}
	for command, flags := range help.FlagHabits() {
		for flag, does := range flags {
			check(t, does, 0)
			dashes := strings.Repeat("-", min(len(flag), 2))
			code, _, stderr := MainOf(t, command, dashes+flag)
			more := "; see berth " + command + " --help"
			if strings.HasSuffix(does, "?") {
				more = ""
			}
			want := "berth: berth " + command + " has no flag " + dashes + flag + ": " + does + more + "\n"
			if (code != 2 && code != ownFailure) || stderr != want {
				t.Errorf("berth %s %s%s: exit %d, %q\nwant %q", command, dashes, flag, code, stderr, want)
			}
		}
	}
}

// TestForeignCommandsAreAnswered checks the commands that users of other engines type first.
func TestForeignCommandsAreAnswered(t *testing.T) {
	t.Parallel()
	for name := range strings.FieldsSeq("ps pull inspect create attach stats launch list info delete images rmi build config network") {
		if help.Habits()[name] == "" {
			t.Errorf("berth %s has no answer", name)
		}
	}
}

// TestHabitsAreNotOffered checks that shells complete only Berth's own commands.
func TestHabitsAreNotOffered(t *testing.T) {
	t.Parallel()
	_, out, _ := MainOf(t, cobra.ShellCompNoDescRequestCmd, "p")
	if want := "pause\nplan\npool\nprotect\n:4\n"; out != want {
		t.Errorf("completion of berth p: %q, want %q", out, want)
	}
}

// MainOf runs one command line that needs no host, and returns what it wrote.
func MainOf(t *testing.T, args ...string) (code int, out, err string) {
	t.Helper()
	null, openErr := os.Open(os.DevNull)
	if openErr != nil {
		t.Fatal(openErr)
	}
	defer null.Close()
	var stdout, stderr bytes.Buffer
	code = Main(context.Background(), args, Streams{In: null, Out: &stdout, Err: &stderr})
	return code, stdout.String(), stderr.String()
}
