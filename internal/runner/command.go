package runner

import (
	"os"
	"strconv"
	"strings"
	"time"

	"berth/internal/runner/streams"
)

// Command is one more command in a running node. Fields that are not set, and its rights, are as for the node's first process.
type Command struct {
	Args    []string
	Env     []string // NAME=value, added to or replacing the node's
	Cwd     string
	User    *User
	Timeout time.Duration     // after it the command is killed, with all processes of its group; 0: never
	RLimits map[string]uint64 // the current ones: berth set may have changed them since the start

	Stdin, Stdout, Stderr *os.File // pipes for this command; nil: a new null device
	Terminal              *Terminal
}

// Terminal is the terminal of a command.
type Terminal struct {
	Rows, Columns uint16                         // 0: the runner's own choice
	Listen        func(string) error             // opens the socket at this path that receives the terminal
	Remote        func() (streams.Remote, error) // opens a line for a terminal whose descriptor cannot come here, instead
}

// The exit codes of a command that could not be run, as in shells and podman.
const (
	ExitCannotRun = 126 // the command exists but cannot be executed
	ExitNotFound  = 127 // the command does not exist
)

// CommandError says that the node's command cannot run, though the node itself could.
type CommandError struct {
	Code    int    // ExitCannotRun or ExitNotFound
	Command string // as given; "" if only the runner's words are known
	Why     string
}

func (e *CommandError) Error() string {
	if e.Command == "" {
		return "cannot run the command: " + e.Why
	}
	return "cannot run " + e.Command + ": " + e.Why
}

// Quote writes a command on one line. It quotes words so that their ends are visible and a terminal obeys nothing in them.
func Quote(args []string) string {
	all := make([]string, len(args))
	for i, a := range args {
		odd := func(r rune) bool { return r == ' ' || r == '"' || r == '\'' || r == '\\' || !strconv.IsPrint(r) }
		if all[i] = a; a == "" || strings.ContainsFunc(a, odd) {
			all[i] = strconv.Quote(a)
		}
	}
	return strings.Join(all, " ")
}

// MergeEnv returns base with the variables of over added or replaced. Both are lists of NAME=value.
func MergeEnv(base, over []string) []string {
	merged := make([]string, 0, len(base)+len(over))
	at := map[string]int{}
	for _, list := range [][]string{base, over} {
		for _, e := range list {
			name, _, _ := strings.Cut(e, "=")
			if i, ok := at[name]; ok {
				merged[i] = e
				continue
			}
			at[name] = len(merged)
			merged = append(merged, e)
		}
	}
	return merged
}
