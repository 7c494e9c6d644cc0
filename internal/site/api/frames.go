package api

// A relayed command speaks through a websocket. The client sends one Start as text; then both send binary messages of which the
// first byte is the stream (Stdin, Stdout, Stderr), and Controls as text. The last message is the server's, a Control with Exit or
// Problem.

// The streams, as the first byte of a binary message.
const (
	Stdin  = 0
	Stdout = 1
	Stderr = 2
)

// Window is how many bytes of standard input may be on their way: the server tells what the command has taken (Control.Took), so
// that a signal is not held up behind input that is not read. The same bound holds for output on its way to a client that tells how
// much it took, so that the server's messages are not held up behind output that is not read.
const Window = 256 << 10

// Chunk is the most bytes of a stream in one message.
const Chunk = 32 << 10

// LongestStart is the most bytes of a Start.
const LongestStart = 8 << 20

// Start asks for a command.
type Start struct {
	Args []string `json:"args"` // the arguments of berth, or a whole command for a node

	// Counts says that the client tells how much output it took, and closes the connection once it has the exit code. No more than
	// Window bytes are then on their way to it. A client that does not count gets all output as it comes.
	Counts bool `json:"counts,omitempty"`

	Terminals [3]bool `json:"terminals,omitzero"` // which of standard input, output and error are the client's terminal
	Rows      uint16  `json:"rows,omitempty"`
	Columns   uint16  `json:"columns,omitempty"`
	Term      string  `json:"term,omitempty"`     // TERM
	NoColor   bool    `json:"no_color,omitempty"` // NO_COLOR

	Files []File `json:"files,omitempty"` // for a command of berth: the client's files that its arguments name

	// For a command in a node, as in berth exec:
	User    string   `json:"user,omitempty"`
	Workdir string   `json:"workdir,omitempty"`
	Env     []string `json:"env,omitempty"` // NAME=VALUE
}

// File is a file of the client's.
type File struct {
	Name    string `json:"name"` // as the arguments have it
	Dir     string `json:"dir"`  // where it lies there: relative paths in it begin there
	Content []byte `json:"content,omitempty"`
	Errno   uint32 `json:"errno,omitempty"` // why the client could not read it
}

// Control is a message of the client or the server, beside the streams.
type Control struct {
	// From both: how many more bytes of the other's streams were taken.
	Took int `json:"took,omitempty"`

	// From the client:
	Signal  string `json:"signal,omitempty"` // SIGINT …
	Rows    uint16 `json:"rows,omitempty"`   // with Columns: the terminal has another size
	Columns uint16 `json:"columns,omitempty"`
	EOF     bool   `json:"eof,omitempty"` // standard input has ended

	// From the server:
	Exit    *int     `json:"exit,omitempty"`    // the command's exit code
	Problem *Problem `json:"problem,omitempty"` // no command was started
}
