package guest

import (
	"os/exec"

	"berth/internal/runner/machine/wire"
)

// CopierWord is the argument by which this program is the copier; three more have its job.
const CopierWord = "copier"

// program finds what a command runs: a program of the image, or Berth's own copier.
func program(want *wire.Command) (*exec.Cmd, *wire.Failure) {
	if want.Copier == nil {
		path, failure := find(want)
		return &exec.Cmd{Path: path, Args: want.Args, Env: environment(want), Dir: folder(want)}, failure
	}
	cmd := &exec.Cmd{Path: "/proc/self/exe", Args: []string{"berth-guest", CopierWord}, Env: []string{"GOMAXPROCS=2"}, Dir: "/"}
	for _, word := range want.Copier {
		cmd.Args = append(cmd.Args, string(word))
	}
	return cmd, nil
}
