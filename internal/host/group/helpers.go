package group

import (
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"syscall"

	"golang.org/x/sys/unix"

	"berth/internal/host"
	"berth/internal/sys/thread"
)

// split reports whether a node's group has groups inside: NAME/node for its container and NAME/helpers for its helpers. That
// is so on a host with cgroup v2 alone, where the limits of NAME hold both together. NAME itself then has no process: the
// kernel allows none in a group that hands controllers on. On v1 container and helpers share NAME in every hierarchy, because
// its limits of block I/O do not hold for the groups inside (block/blk-throttle.c).
func split(h host.Cgroups) bool { return h.V2 != "" && len(h.V1) == 0 }

// containers is the name of the container's group in its node's.
const containers = "node"

// Container returns the path of the group that a node's container has as its root. path is that of the node's group.
func Container(h host.Cgroups, path string) string {
	if split(h) {
		return path + "/" + containers
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

// HelperGate opens the place of a node's helpers: programs that work for the node from outside it, such as a gateway or an emulator.
// From their first instruction the limits of the node's group at path hold them together with the container. They end with the
// group: Kill and the undo of the group kill them. The caller closes the gate.
func HelperGate(h host.Cgroups, path string) (*Gate, error) {
	at := Helpers(h, path)
	if split(h) {
		if err := unix.Mkdir(V2Dir(h, at), 0o755); err != nil && !errors.Is(err, unix.EEXIST) {
			return nil, fmt.Errorf("make the cgroup %s: %w", filepath.Join(h.V2, at), err)
		}
	}
	return EntryTo(h, at).Open()
}

// StartHelper starts a helper of a node. The caller calls fork.Wait.
func StartHelper(h host.Cgroups, path string, cmd *exec.Cmd) error {
	gate, err := HelperGate(h, path)
	if err != nil {
		return err
	}
	defer gate.Close()
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	return thread.Own(func() error { return gate.Start(cmd) })
}

// MoveHelper moves a process that was started elsewhere to the place of a node's helpers.
func MoveHelper(h host.Cgroups, path string, pid int) error {
	for _, hh := range Hierarchies(h) {
		if err := hh.Move(pid, Helpers(h, path)); err != nil {
			return fmt.Errorf("move process %d to the node's helpers: %w", pid, err)
		}
	}
	return nil
}
