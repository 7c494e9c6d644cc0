package site

import (
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"berth/internal/sys/refuse"
)

// Host is the value of the flag --host, which stands before the command: [HostOf] takes it from there.
type Host struct{}

func (Host) String() string { return "" }

// Type is what help and man pages print for it.
func (Host) Type() string { return "string" }

// Set refuses the flag in another place: it would be easy to overlook there, and is no flag of a single command.
func (Host) Set(name string) error {
	return refuse.Invalidf("--host stands before the command: berth --host %s COMMAND", name)
}

// HostOf returns the host that a command line begins with, and the rest of it. ok is false for a command line for this host.
func HostOf(args []string) (host string, rest []string, ok bool) {
	for i := 0; i < len(args); i++ {
		switch a := args[i]; {
		case a == "--host" && i+1 < len(args):
			return args[i+1], slices.Concat(args[:i], args[i+2:]), true
		case strings.HasPrefix(a, "--host="):
			return strings.TrimPrefix(a, "--host="), slices.Concat(args[:i], args[i+1:]), true
		case a == "--root":
			i++
		case strings.HasPrefix(a, "--root="):
		default:
			return "", nil, false
		}
	}
	return "", nil, false
}

// Remote carries a command line out on another host. It takes the files of this host along that the command line names, and
// refuses what cannot travel.
func Remote(root *cobra.Command, host string, args []string) error {
	files, err := travels(root, host, args)
	if err != nil {
		return err
	}
	own := []string{"command", "--host=" + host}
	for _, f := range files {
		own = append(own, "--file="+f)
	}
	return Become(append(append(own, "--"), args...))
}

// travels returns the files of this host that a command line names. A wrong command line is left to the other host to refuse.
func travels(root *cobra.Command, host string, args []string) (files []string, err error) {
	if len(args) > 0 && (args[0] == "--root" || strings.HasPrefix(args[0], "--root=")) {
		return nil, refuse.Invalidf("--root is not for another host: its agent says where that keeps its nodes")
	}
	c, rest, err := root.Find(args)
	if err != nil || c.DisableFlagParsing || c.ParseFlags(rest) != nil {
		return nil, nil //nolint:nilerr // the other host says what is wrong
	}
	words := c.Flags().Args()
	here := func(format string, a ...any) error { return refuse.Invalidf("with --host "+format, a...) }
	value := func(flag string) string {
		if f := c.Flags().Lookup(flag); f != nil {
			return f.Value.String()
		}
		return ""
	}
	switch strings.TrimPrefix(c.CommandPath(), "berth ") {
	case "apply", "plan", "run", "net export":
		files, err = c.Flags().GetStringArray("file")
		return slices.DeleteFunc(files, func(f string) bool { return f == "-" }), err
	case "cp":
		if len(words) != 2 || slices.Contains(words, "-") {
			break
		}
		if strings.Contains(words[0], ":") {
			return nil, here("a folder of this host is written by tar: berth --host %s cp %s - | tar -x", host, words[0])
		}
		return nil, here("a file of this host goes as a tar stream: tar -c %s | berth --host %s cp - %s", words[0], host, words[1])
	case "export":
		if o := value("output"); o != "" && o != "-" {
			return nil, here("-o would be a file of the other host: berth --host %s export %s >%s", host, strings.Join(words, " "), o)
		}
	case "image import":
		return nil, here("an archive of this host does not travel: berth image serve gives images to other hosts, and berth --host %s image pull fetches them", host)
	case "bench report", "bench compare":
		return nil, here("results are files of this host: berth %s without --host reads them", strings.Join(args, " "))
	case "completion":
		return nil, here("there is nothing to complete: it is for the shell of this host")
	}
	return files, nil
}
