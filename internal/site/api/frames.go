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
// that a signal is not held up behind input that nobody reads. As many bytes of output are on their way to a client that tells what
// it has taken, so that what the server tells is not held up behind output that nobody reads.
const Window = 256 << 10

// Chunk is the most bytes of a stream in one message.
const Chunk = 32 << 10

// LongestStart is the most bytes of a Start.
const LongestStart = 8 << 20

// Start asks for a command.
type Start struct {
	Args []string `json:"args"` // of berth, or in a node of the command itself

	// Counts says that the client tells what it took of the output, and closes the connection once it has the exit code. No more than
	// Window bytes are on their way to it. To a client that does not count, all is sent as it comes.
	Counts bool `json:"counts,omitempty"`

	Terminals [3]bool `json:"terminals,omitzero"` // which of standard input, output and error are the client's terminal
	Rows      uint16  `json:"rows,omitempty"`
	Columns   uint16  `json:"columns,omitempty"`
	Term      string  `json:"term,omitempty"`     // TERM
	NoColor   bool    `json:"no_color,omitempty"` // NO_COLOR

	Files []File `json:"files,omitempty"` // of a command of berth: the client's, which its arguments name

	// Of a command in a node: as of berth exec.
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

// Control is what the two say beside the streams.
type Control struct {
	// Of both: so many bytes more of the other's streams are taken.
	Took int `json:"took,omitempty"`

	// Of the client:
	Signal  string `json:"signal,omitempty"` // SIGINT …
	Rows    uint16 `json:"rows,omitempty"`   // with Columns: the terminal has another size
	Columns uint16 `json:"columns,omitempty"`
	EOF     bool   `json:"eof,omitempty"` // standard input has ended

	// Of the server:
	Exit    *int     `json:"exit,omitempty"`    // the command's exit code
	Problem *Problem `json:"problem,omitempty"` // no command was started
}
