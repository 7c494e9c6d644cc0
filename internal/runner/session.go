package runner

import (
	"context"
	"encoding/json"
	"os"
)

// Attacher is a step that needs something that only the command which starts the node knows, and no journal holds.
type Attacher interface {
	// Attach is called once, before Do.
	Attach(s *Session)
}

// Session has what only the command that starts a node knows.
type Session struct {
	Files
	Console    string // socket that receives the node's terminal; "": no terminal
	Unfiltered bool   // no filter of system calls: to measure what it costs
	// Launch has another process carry the create out; nil: this process does.
	Launch func(context.Context, *Launch) error
	// Created is called when the first process exists and before it runs its command. An error keeps it from running. nil:
	// nothing to call.
	Created func() error
}

// Attach gives the session to a step, if the step needs it.
func (s *Session) Attach(to any) {
	if a, ok := to.(Attacher); ok {
		a.Attach(s)
	}
}

// Files are the open files of a create. They belong to the caller.
type Files struct {
	// The streams of the first process; nil is a new null device.
	Stdin, Stdout, Stderr *os.File
	// Lock is the node's lock file. Every process that works on the create holds the lock too, so that a repair waits
	// for a runner whose parent was killed. The first process does not inherit it.
	Lock *os.File
	// Line is another file that is held while the create works; nil for none.
	Line *os.File
}

// Launch is a create that any process can carry out, with files of its own: the parent of a process alone learns
// how it ended, and the command that starts a node often ends before the node.
type Launch struct {
	Family string          `json:"family,omitempty"` // whose it is; "": OCI runtimes
	Input  json.RawMessage `json:"input"`            // the family's own
	Files  `json:"-"`
}
