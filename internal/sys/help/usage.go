package help

import (
	"errors"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"berth/internal/sys/refuse"
	"berth/internal/sys/suggest"
)

// unknownCommand refuses an unknown command. It names the way of Berth if other engines have that command, or else the
// nearest command.
func unknownCommand(c *cobra.Command, name string) error {
	if does := Habits()[strings.TrimSpace(Path(c)+" "+name)]; does != "" {
		return refuse.Invalidf("%s has no %s: %s", c.CommandPath(), name, does)
	}
	var names []string
	for _, sub := range c.Commands() {
		if sub.IsAvailableCommand() {
			names = append(names, sub.Name())
		}
	}
	if meant := suggest.To(name, names); meant != "" {
		return refuse.Invalidf("there is no command %s %s; did you mean %s?", c.CommandPath(), name, meant)
	}
	return refuse.Invalidf("there is no command %s %s; see %s --help", c.CommandPath(), name, c.CommandPath())
}

// FlagError says what is wrong with a flag, in Berth's words instead of the library's.
func FlagError(c *cobra.Command, err error) error {
	if r, ok := errors.AsType[*refuse.Error](err); ok { // the flag's own words
		return r
	}
	what := err.Error()
	if c.HasSubCommands() && c.Flags().NArg() > 0 { // as in ps -a: the word before is what is wrong
		return unknownCommand(c, c.Flags().Arg(0))
	}
	if e, ok := errors.AsType[*pflag.NotExistError](err); ok {
		what = noFlag(c, e)
	} else if e, ok := errors.AsType[*pflag.ValueRequiredError](err); ok {
		kind, _ := pflag.UnquoteUsage(e.GetFlag())
		what = flagName(e.GetFlag()) + " needs a value: " + kind
	} else if e, ok := errors.AsType[*pflag.InvalidValueError](err); ok {
		what = flagName(e.GetFlag()) + ": " + strconv.Quote(e.GetValue()) + " is not allowed: " + wanted(e.GetFlag())
	} else if e, ok := errors.AsType[*pflag.InvalidSyntaxError](err); ok {
		what = strconv.Quote(e.GetSpecifiedFlag()) + " is no flag"
	}
	if strings.HasSuffix(what, "?") {
		return refuse.Invalidf("%s", what)
	}
	return refuse.Invalidf("%s; see %s --help", what, c.CommandPath())
}

func flagName(f *pflag.Flag) string {
	return "--" + f.Name
}

// wanted describes the values that a flag accepts.
func wanted(f *pflag.Flag) string {
	switch f.Value.Type() {
	case "duration":
		return "a time, for example 10s or 2m"
	case "int":
		return "a whole number"
	case "uint64":
		return "a whole number from 0"
	case "float64":
		return "a number"
	case "bool":
		return "true or false"
	case "intSlice":
		return "whole numbers, parted by commas"
	}
	return "text"
}

// noFlag says that a command has no such flag, and which one was probably meant.
func noFlag(c *cobra.Command, e *pflag.NotExistError) string {
	name, shown := e.GetSpecifiedName(), "--"+e.GetSpecifiedName()
	if e.GetSpecifiedShortnames() != "" {
		shown = "-" + name
	}
	what := c.CommandPath() + " has no flag " + shown
	if does := FlagHabits()[Path(c)][name]; does != "" {
		return what + ": " + does
	}
	var names []string
	add := func(f *pflag.Flag) {
		if !f.Hidden && !slices.Contains(names, f.Name) {
			names = append(names, f.Name)
		}
	}
	c.LocalFlags().VisitAll(add)
	c.InheritedFlags().VisitAll(add)
	if e.GetSpecifiedShortnames() == "" {
		if meant := suggest.To(name, names); meant != "" {
			what += "; did you mean --" + meant + "?"
		}
	}
	return what
}

// argsError says which argument of a command is missing or superfluous. check is the command's own check.
func argsError(c *cobra.Command, args []string, check cobra.PositionalArgs) error {
	usage := "usage: " + c.UseLine() + "; see " + c.CommandPath() + " --help"
	args = slices.DeleteFunc(slices.Clone(args), func(a string) bool { return a == "--" })
	for n, word := range slices.Backward(args) {
		if check(c, args[:n]) == nil {
			if c.Flags().Lookup("file") != nil {
				usage = "did you mean -f " + word + "? " + usage
			}
			return refuse.Invalidf("%q is one word too many; %s", word, usage)
		}
	}
	if want := argument(c, len(args)); want != "" {
		return refuse.Invalidf("%s is missing; %s", want, usage)
	}
	return refuse.Invalidf("%s", usage)
}

// argument returns the name of a command's i-th argument in its usage; "" if the usage has none.
func argument(c *cobra.Command, i int) string {
	words := slices.DeleteFunc(strings.Fields(c.Use)[1:], func(w string) bool {
		return strings.HasPrefix(w, "[-") || w == "--"
	})
	if i >= len(words) {
		return ""
	}
	return strings.Trim(words[i], "…[]")
}
