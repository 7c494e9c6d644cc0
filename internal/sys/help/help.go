// Package help words what the command line says of itself: help texts and their headings, wrong usage, errors, and the ways of
// Berth for those who know other engines.
package help

import (
	"context"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"berth/internal/sys/text"
)

// group is a heading in the list of commands.
type group struct {
	id, title string
}

func groups() []group {
	return []group{{"life", "The life of a node"}, {"look", "Looking at nodes"}, {"host", "This host"}, {"site", "Other hosts"}}
}

// AddGroups adds the headings of the list of commands.
func AddGroups(root *cobra.Command) {
	for _, g := range groups() {
		root.AddGroup(&cobra.Group{ID: g.id, Title: g.title})
	}
}

// Under puts commands under the heading id.
func Under(id string, all ...*cobra.Command) []*cobra.Command {
	for _, c := range all {
		c.GroupID = id
	}
	return all
}

// Write writes the help of a command, at most [text.Width] columns wide.
func Write(w io.Writer, c *cobra.Command) {
	about := c.Long
	if about == "" {
		about = strings.ToUpper(c.Short[:1]) + c.Short[1:] + "."
	}
	fmt.Fprintf(w, "%s\n\n", about)
	WriteUsage(w, c)
}

// WriteUsage writes how a command is called.
func WriteUsage(w io.Writer, c *cobra.Command) {
	fmt.Fprint(w, "Usage:\n")
	if c.HasAvailableSubCommands() {
		fmt.Fprintf(w, "  %s COMMAND\n", c.CommandPath())
	} else {
		fmt.Fprintf(w, "  %s\n", c.UseLine())
	}
	if c.Example != "" {
		fmt.Fprintf(w, "\nExamples:\n%s\n", c.Example)
	}
	writeCommands(w, c)
	if flags := c.LocalFlags().FlagUsagesWrapped(text.Width); flags != "" {
		fmt.Fprintf(w, "\nFlags:\n%s", flags)
	}
	if c.HasAvailableInheritedFlags() {
		fmt.Fprintf(w, "\nFlags of every command:\n%s", c.InheritedFlags().FlagUsagesWrapped(text.Width))
	}
	if c.HasAvailableSubCommands() {
		fmt.Fprintf(w, "\n%s COMMAND --help tells more about a command.\n", c.CommandPath())
	}
}

func writeCommands(w io.Writer, c *cobra.Command) {
	list := func(title, id string) {
		for _, sub := range c.Commands() {
			if !sub.IsAvailableCommand() || sub.GroupID != id {
				continue
			}
			if title != "" {
				fmt.Fprintf(w, "\n%s:\n", title)
				title = ""
			}
			fmt.Fprintf(w, "  %-11s %s\n", sub.Name(), sub.Short)
		}
	}
	for _, g := range groups() {
		list(g.title, g.id)
	}
	list("Commands", "")
}

// Command is "berth help COMMAND". It does the same as --help, but fails for an unknown command.
func Command() *cobra.Command {
	return &cobra.Command{
		Use: "help [COMMAND]", Short: "tell more about a command", Args: cobra.ArbitraryArgs,
		Example:           "  berth help run",
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, args []string) error {
			c, rest, err := cmd.Root().Find(args)
			if err != nil || c == cmd.Root() && len(args) > 0 || len(rest) > 0 {
				return unknownCommand(cmd.Root(), strings.Join(args, " "))
			}
			c.InitDefaultHelpFlag()
			return c.Help()
		},
	}
}

// CheckArgs makes a command and its subcommands exit with code 2 (wrong usage) for a wrong number of arguments or an
// unknown subcommand.
func CheckArgs(c *cobra.Command) {
	for _, sub := range c.Commands() {
		CheckArgs(sub)
	}
	if c.HasSubCommands() {
		c.RunE = func(cmd *cobra.Command, _ []string) error { return cmd.Help() }
		c.Args = func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 {
				return unknownCommand(cmd, args[0])
			}
			return nil
		}
		return
	}
	check := c.Args
	if check == nil {
		check = cobra.NoArgs
	}
	if c.ValidArgsFunction == nil {
		c.ValidArgsFunction = cobra.NoFileCompletions
	}
	c.Args = func(cmd *cobra.Command, args []string) error {
		if err := check(cmd, args); err != nil {
			return argsError(cmd, args, check)
		}
		return nil
	}
}

// PrintError writes an error for people. Each line begins with the program's name.
func PrintError(w io.Writer, err error) {
	lines := strings.ReplaceAll(err.Error(), context.Canceled.Error(), "interrupted")
	for line := range strings.SplitSeq(lines, "\n") {
		text.Wrap(w, text.Columns(w), len("berth: "), "berth: ", line)
	}
}
