package guest

import (
	"os"
	"os/exec"

	"golang.org/x/sys/unix"

	"berth/internal/runner/machine/wire"
)

// connect gives a command its streams. theirs are its ends of them, also after an error: they are to be closed.
func (c *command) connect(cmd *exec.Cmd, want *wire.Command) (theirs []*os.File, err error) {
	if want.Terminal != nil {
		return c.connectTerminal(cmd, want)
	}
	in, ours, err := newInput()
	if err != nil {
		return nil, err
	}
	c.stdin, cmd.Stdin, theirs = ours, in, append(theirs, in)
	kinds := []wire.Kind{wire.Output, wire.Error}
	if want.OneOutput {
		kinds = kinds[:1]
	}
	for _, kind := range kinds {
		r, w, err := os.Pipe()
		if err != nil {
			return theirs, err
		}
		theirs = append(theirs, w)
		c.read(kind, r, false)
	}
	cmd.Stdout, cmd.Stderr = theirs[1], theirs[len(kinds)]
	if want.Copier == nil {
		return theirs, nil
	}
	root, err := os.OpenFile("/", unix.O_PATH|unix.O_DIRECTORY, 0)
	if err != nil {
		return theirs, err
	}
	cmd.ExtraFiles = []*os.File{root, theirs[len(kinds)], root} // its root, its report, and what would be its program on a host
	return append(theirs, root), nil
}

// read lets what comes from a file be sent as a stream.
func (c *command) read(kind wire.Kind, from *os.File, terminal bool) {
	c.outputs.pipes = append(c.outputs.pipes, &output{kind, from, terminal, wire.NewSender(c.agent.out, c.channel, kind, nil)})
}

// disconnect closes Berth's ends of a command's streams.
func (c *command) disconnect() {
	if c.stdin != nil {
		c.stdin.Close()
	}
	c.outputs.close()
}
