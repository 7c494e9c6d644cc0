package oci

import (
	"bytes"
	"encoding/json"
	"os"
	"strconv"
	"strings"
)

// The exit codes of a command that could not be run, as in shells and podman.
const (
	ExitCannotRun = 126 // the command exists but cannot be executed
	ExitNotFound  = 127 // the command does not exist
)

// CommandError says that the node's command cannot run, though the node itself could.
type CommandError struct {
	Code    int    // ExitCannotRun or ExitNotFound
	Command string // as given; "" if only the runtime's words are known
	Why     string
}

func (e *CommandError) Error() string {
	if e.Command == "" {
		return "cannot run the command: " + e.Why
	}
	return "cannot run " + e.Command + ": " + e.Why
}

// lastError returns the last error in a runtime's log; "" if there is none. The log has one JSON object per line; a line
// that is not JSON counts as an error.
func lastError(log string) string {
	b, err := os.ReadFile(log)
	if err != nil {
		return ""
	}
	words := ""
	for line := range bytes.Lines(b) {
		var entry struct{ Level, Msg string }
		if line = bytes.TrimSpace(line); len(line) == 0 {
			continue
		}
		if json.Unmarshal(line, &entry) != nil {
			words = string(line)
		} else if entry.Level == "error" || entry.Level == "fatal" {
			words = entry.Msg
		}
	}
	return words
}

// commandFailure recognises the runtimes' messages for a command that does not exist or cannot be executed. Messages are
// parsed only in this file: at create the runtimes look up the command in a file system that only they see, and their
// exit status is the same for every failure. An unknown message gives nil: an ordinary failure.
func commandFailure(words string) *CommandError {
	if _, why, ok := strings.Cut(words, "unable to start container process: exec: "); ok { // runc
		if strings.HasSuffix(why, "executable file not found in $PATH") || strings.HasSuffix(why, "no such file or directory") {
			return &CommandError{Code: ExitNotFound, Why: why}
		}
		return &CommandError{Code: ExitCannotRun, Why: why}
	}
	switch { // crun
	case strings.HasPrefix(words, "executable file `"):
		return &CommandError{Code: ExitNotFound, Why: words}
	case strings.HasPrefix(words, "open executable: "):
		return &CommandError{Code: ExitCannotRun, Why: words}
	}
	return nil
}

// execFailure is commandFailure for a runtime's exec. The command was looked up before, so the remaining failures are that
// the kernel refuses it or that its user may not run it.
func execFailure(command, words string) *CommandError {
	if ce := commandFailure(words); ce != nil {
		ce.Command = command
		return ce
	}
	for _, prefix := range []string{"exec: ", "exec " + command + ": ", "chdir: "} { // crun
		if why, ok := strings.CutPrefix(words, prefix); ok {
			return &CommandError{Code: ExitCannotRun, Command: command, Why: strings.ToLower(why[:1]) + why[1:]}
		}
	}
	return nil
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
