package oci

import (
	"bytes"
	"encoding/json"
	"os"
	"strings"

	"berth/internal/runner"
)

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
func commandFailure(words string) *runner.CommandError {
	if _, why, ok := strings.Cut(words, "unable to start container process: exec: "); ok { // runc
		if strings.HasSuffix(why, "executable file not found in $PATH") || strings.HasSuffix(why, "no such file or directory") {
			return &runner.CommandError{Code: runner.ExitNotFound, Why: why}
		}
		return &runner.CommandError{Code: runner.ExitCannotRun, Why: why}
	}
	switch { // crun
	case strings.HasPrefix(words, "executable file `"):
		return &runner.CommandError{Code: runner.ExitNotFound, Why: words}
	case strings.HasPrefix(words, "open executable: "):
		return &runner.CommandError{Code: runner.ExitCannotRun, Why: words}
	}
	return nil
}

// execFailure is commandFailure for a runtime's exec. The command was looked up before, so the remaining failures are that
// the kernel refuses it or that its user may not run it.
func execFailure(command, words string) *runner.CommandError {
	if ce := commandFailure(words); ce != nil {
		ce.Command = command
		return ce
	}
	for _, prefix := range []string{"exec: ", "exec " + command + ": ", "chdir: "} { // crun
		if why, ok := strings.CutPrefix(words, prefix); ok {
			return &runner.CommandError{Code: runner.ExitCannotRun, Command: command, Why: strings.ToLower(why[:1]) + why[1:]}
		}
	}
	return nil
}
