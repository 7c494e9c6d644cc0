package server

import (
	"slices"
	"strings"

	"berth/internal/sys/refuse"
)

// hidden are the commands that berth's own processes call.
func hidden() []string {
	return []string{"keeper", "check-health", "copier", "netserve", "__complete", "__completeNoDesc"}
}

// relayable refuses command lines that make no sense on another host. Flags before the command are refused altogether: the root
// is the agent's, and a host is named by the client's own berth. A caller who may run any command line is root of the host:
// these checks prevent mistakes only. Other callers are bounded by reads.
func relayable(args []string) error {
	if len(args) == 0 {
		return nil
	}
	if slices.Contains(hidden(), args[0]) {
		return refuse.Invalidf("berth %s is called by berth's own processes only", args[0])
	}
	for _, a := range args {
		if a == "--" {
			break
		}
		for _, flag := range []string{"--root", "--host"} {
			if a == flag || strings.HasPrefix(a, flag+"=") {
				return refuse.Invalidf("%s is not for the berth of another host", flag)
			}
		}
	}
	return nil
}

// readLine is a command that only reads, with all that may stand behind its words.
type readLine struct {
	words string
	flags string // each with its dashes; one that takes a value ends with "="
	names bool   // it takes words that are no flags: names of nodes or commands, never files
}

// readLines are the command lines for callers who may only read. Anything that is not listed is refused: a flag that is new to
// a command, or opens a file of the host, or writes. Each flag is an argument of its own; flags that are run together (-fn20)
// are refused.
func readLines() []readLine {
	return []readLine{
		{"ls", "--json --filter=", false},
		{"show", "--json --spec", true},
		{"top", "--json --plain --interval= -i= --samples= -n= --sort=", true},
		{"logs", "--follow -f --lines= -n= --timestamps -t --since= --until=", true},
		{"events", "--json --stream --since= --until=", true},
		{"wait", "--json --timeout=", true},
		{"doctor", "--all --json", false},
		{"schema", "", false},
		{"completion", "", true},
		{"help", "", true},
		{"image ls", "--json", false},
		{"vf ls", "--json", false},
		{"net export", "--format= --json", false},
		{"net pool ls", "--json", false},
		{"pool ls", "--json", false},
		{"host ls", "--json", false},
		{"template ls", "--json", false},
	}
}

// reads reports whether a command line is that of a command that only reads. The error says which part of it is not for callers
// who may only read.
func reads(args []string) (bool, error) {
	if len(args) == 1 && slices.Contains([]string{"--help", "-h", "--version", "-v"}, args[0]) {
		return true, nil
	}
	for _, r := range readLines() {
		if words := strings.Fields(r.words); len(args) >= len(words) && slices.Equal(args[:len(words)], words) {
			return true, r.check(args[len(words):])
		}
	}
	return false, nil
}

// check refuses arguments that are not listed. It never reads an argument as something else than berth does: a value that begins
// with a dash, and "--", are refused.
func (r readLine) check(args []string) error {
	flags := strings.Fields(r.flags)
	for i := 0; i < len(args); i++ {
		a := args[i]
		flag, value, valued := strings.Cut(a, "=")
		long := strings.HasPrefix(a, "--")
		switch {
		case !strings.HasPrefix(a, "-"):
			if !r.names || a == "" {
				return r.no(a)
			}
		case a == "--help", a == "-h", slices.Contains(flags, a) && !valued:
		case long && valued && slices.Contains(flags, flag+"="):
		case long && (value == "true" || value == "false") && slices.Contains(flags, flag):
		case !valued && slices.Contains(flags, a+"=") && i+1 < len(args) && !strings.HasPrefix(args[i+1], "-"):
			i++ // its value
		default:
			return r.no(a)
		}
	}
	return nil
}

func (r readLine) no(arg string) error {
	return refuse.Cannotf("who only reads writes each flag by itself, and has those that read; an admin may run any command line",
		"berth %s takes no %q from who only reads", r.words, arg)
}
