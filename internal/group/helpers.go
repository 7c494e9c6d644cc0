package group

import (
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"syscall"

	"golang.org/x/sys/unix"

	"berth/internal/host"
	"berth/internal/thread"
)

// split reports whether a node's group has groups inside: NAME/node for its container and NAME/helpers for its helpers. That
// is so on a host with cgroup v2 alone, where the limits of NAME hold both together. NAME itself then has no process: the
// kernel allows none in a group that hands controllers on. On v1 container and helpers share NAME in every hierarchy, because
// its limits of block I/O do not hold for the groups inside (block/blk-throttle.c).
func split(h host.Cgroups) bool { return h.V2 != "" && len(h.V1) == 0 }

// Container returns the path of the group that a node's container has as its root. path is that of the node's group.
func Container(h host.Cgroups, path string) string {
	if split(h) {
		return path + "/node"
	}
	return path
}

// Helpers returns the path of the group of a node's helpers. path is that of the node's group.
func Helpers(h host.Cgroups, path string) string {
	if split(h) {
		return path + "/helpers"
	}
	return path
}

// StartHelper starts a helper of a node: a program that works for the node from outside it, such as a gateway or an emulator.
// From its first instruction the limits of the node's group at path hold it together with the container. It ends with the
// group: Kill and the undo of the group kill it. The caller calls fork.Wait.
func StartHelper(h host.Cgroups, path string, cmd *exec.Cmd) error {
	at := Helpers(h, path)
	if split(h) {
		if err := unix.Mkdir(V2Dir(h, at), 0o755); err != nil && !errors.Is(err, unix.EEXIST) {
			return fmt.Errorf("make the cgroup %s: %w", filepath.Join(h.V2, at), err)
		}
	}
	gate, err := EntryTo(h, at).Open()
	if err != nil {
		return err
	}
	defer gate.Close()
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	return thread.Own(func() error { return gate.Start(cmd) })
}
