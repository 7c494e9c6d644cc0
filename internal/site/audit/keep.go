package audit

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"strings"

	"berth/internal/spec/roles"
	"berth/internal/sys/refuse"
)

// Keep writes the line of an act that was asked for: err is why it was refused, or failed; without it the act is done, or as the line has
// it. A line that cannot be written is said in the agent's log; the act is not undone by it. Of an act that changes something the error
// says so, too, refuse.Cannot: a caller that has not begun the act must not begin it. Reads go on without their line.
func (l *Log) Keep(line Line, err error) error {
	line.Result = cmp.Or(line.Result, Done)
	if err != nil {
		line.Result, line.Error = Failed, err.Error()
		_, denied := errors.AsType[*roles.Denied](err)
		if denied || refuse.KindOf(err) != refuse.Failed {
			line.Result = Refused
		}
	}
	missing := l.Add(line)
	lost(line, missing)
	if missing == nil || !line.changes() {
		return nil
	}
	return &refuse.Error{
		Kind: refuse.Cannot, What: fmt.Sprintf("%s is not begun, because the audit cannot note it: %v", line.Act, missing),
		Remedy: "make room in " + filepath.Dir(l.acts.path) + " on the agent's host, where root may use berth meanwhile without the agent", Err: missing,
	}
}

// lost says that a line could not be written, if err says so.
func lost(line Line, err error) {
	if err != nil {
		slog.Error("an act is missing in the audit log", "who", line.Who, "act", line.Act, "on", line.On, "err", err)
	}
}

// reads reports whether an act changes nothing: its line need not wait for the disk.
func reads(act roles.Act) bool {
	return strings.HasSuffix(string(act), ".read") || act == roles.NodeList || act == roles.NodeLogs
}
