// Command helper starts a program as a helper of a node, and ends with its exit code: helper GROUP PROGRAM [ARGUMENT]...
// GROUP is the node's cgroup, as berth show prints it.
package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"

	"berth/internal/host"
	"berth/internal/host/group"
	"berth/internal/sys/fork"
)

func main() {
	err := run(os.Args[1], os.Args[2:])
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		os.Exit(exit.ExitCode())
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(node string, args []string) error {
	h, err := host.ReadCgroups("/proc")
	if err != nil {
		return err
	}
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	if err := group.StartHelper(h, node, cmd); err != nil {
		return err
	}
	return fork.Wait(cmd)
}
