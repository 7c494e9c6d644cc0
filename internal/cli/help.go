package cli

import (
	"context"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"
)

// group is a heading in the list of commands.
type group struct {
	id, title string
}

func groups() []group {
	return []group{{"life", "The life of a node"}, {"look", "Looking at nodes"}, {"host", "This host"}}
}

// under puts commands under the heading id.
func under(id string, all ...*cobra.Command) []*cobra.Command {
	for _, c := range all {
		c.GroupID = id
	}
	return all
}

// writeHelp writes the help of a command, at most [helpWidth] columns wide.
func writeHelp(w io.Writer, c *cobra.Command) {
	about := c.Long
	if about == "" {
		about = strings.ToUpper(c.Short[:1]) + c.Short[1:] + "."
	}
	fmt.Fprintf(w, "%s\n\n", about)
	writeUsage(w, c)
}

func writeUsage(w io.Writer, c *cobra.Command) {
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
	if flags := c.LocalFlags().FlagUsagesWrapped(helpWidth); flags != "" {
		fmt.Fprintf(w, "\nFlags:\n%s", flags)
	}
	if c.HasAvailableInheritedFlags() {
		fmt.Fprintf(w, "\nFlags of every command:\n%s", c.InheritedFlags().FlagUsagesWrapped(helpWidth))
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

// helpCmd is "berth help COMMAND". It does the same as --help, but fails for an unknown command.
func helpCmd() *cobra.Command {
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

// checkArgs makes a command and its subcommands exit with code 2 (wrong usage) for a wrong number of arguments or an
// unknown subcommand.
func checkArgs(c *cobra.Command) {
	for _, sub := range c.Commands() {
		checkArgs(sub)
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

// printError writes an error for people. Each line begins with the program's name.
func printError(w io.Writer, err error) {
	text := strings.ReplaceAll(err.Error(), context.Canceled.Error(), "interrupted")
	for line := range strings.SplitSeq(text, "\n") {
		wrap(w, columns(w), len("berth: "), "berth: ", line)
	}
}
