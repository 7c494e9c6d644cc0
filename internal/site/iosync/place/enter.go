package place

import (
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"

	"berth/internal/host"
	"berth/internal/host/group"
	"berth/internal/sys/fork"
	"berth/internal/sys/layout"
	"berth/internal/sys/mac"
	"berth/internal/sys/refuse"
)

// Lookup returns the node that has an address on a file system. ok is false for an address that is no node's.
func Lookup(l layout.Layout, filesystem string, addr netip.Addr) (node string, ok bool, err error) {
	addr = addr.Unmap().WithZone("")
	for _, a := range []netip.Addr{addr, mac.Sibling(addr)} {
		if !a.IsValid() {
			break // it has no sibling
		}
		node, err = os.Readlink(filepath.Join(Dir(l, filesystem), "addresses", a.String()))
		if err == nil {
			return node, true, nil
		}
		if !errors.Is(err, fs.ErrNotExist) {
			break
		}
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return "", false, fmt.Errorf("find whose address %s is: %w", addr, err)
	}
	if _, err := os.Stat(filepath.Join(Dir(l, filesystem), "generation")); err != nil {
		return "", false, refuse.Cannotf("name it under filesystems in berthd.yaml and start berthd", "this host serves no file system %s to nodes: %w", filesystem, err)
	}
	return "", false, nil
}

// Entrance starts programs in the groups of nodes. It works also on a thread that sees neither /sys nor /proc any more.
type Entrance struct {
	l          layout.Layout
	filesystem string
	home       *os.File // v1: takes this program's threads back
}

// NewEntrance opens the way into the groups of a file system.
func NewEntrance(l layout.Layout, filesystem string) (*Entrance, error) {
	if _, _, err := Lookup(l, filesystem, netip.IPv4Unspecified()); err != nil {
		return nil, err
	}
	facts, err := host.ReadFacts()
	if err != nil {
		return nil, err
	}
	at, err := hierarchy(facts.Cgroups)
	if err != nil {
		return nil, err
	}
	e := &Entrance{l: l, filesystem: filesystem}
	if at.V2 {
		return e, nil
	}
	own, err := at.GroupOf(os.Getpid())
	if err != nil {
		return nil, err
	}
	e.home, err = os.OpenFile(filepath.Join(at.Mount, own, "tasks"), os.O_WRONLY, 0)
	return e, err
}

// door is a node's group, open to be entered.
type door struct {
	node string // "": the address is no node's
	at   *os.File
	err  error
}

// open finds and opens the group of the node that has an address.
func (e *Entrance) open(addr netip.Addr) (d door) {
	node, ok, err := Lookup(e.l, e.filesystem, addr)
	if err != nil || !ok {
		return door{err: err}
	}
	path, flags := filepath.Join(Dir(e.l, e.filesystem), "groups", node), os.O_RDONLY
	if e.home != nil {
		path, flags = filepath.Join(path, "tasks"), os.O_WRONLY
	}
	at, err := os.OpenFile(path, flags, 0)
	if err != nil {
		return door{err: fmt.Errorf("open the group of node %s: %w", node, err)}
	}
	return door{node: node, at: at}
}

// Start starts a command that serves a client. If the client's address is a node's, the command is in the node's group from its
// first instruction, and node is its name. The calling thread must be locked; cmd.SysProcAttr is set.
func (e *Entrance) Start(addr netip.Addr, cmd *exec.Cmd) (node string, err error) {
	opened := make(chan door, 1)
	go func() { opened <- e.open(addr) }() // another thread, which sees the files
	d := <-opened
	if d.err != nil {
		return "", d.err
	}
	if d.at == nil {
		return "", fork.Start(cmd)
	}
	defer d.at.Close()
	if e.home == nil {
		cmd.SysProcAttr.UseCgroupFD, cmd.SysProcAttr.CgroupFD = true, int(d.at.Fd())
		return d.node, fork.Start(cmd)
	}
	if err := self(d.at); err != nil {
		return "", fmt.Errorf("enter the group of node %s: %w", d.node, err)
	}
	err = fork.Start(cmd)
	if back := self(e.home); back != nil && err == nil {
		err = errors.Join(fmt.Errorf("leave the group of node %s: %w", d.node, back), cmd.Process.Kill(), fork.Wait(cmd))
	}
	return d.node, err
}

// Start starts a command that is in a node's group from its first instruction. cmd.SysProcAttr is set. The calling thread ends after it
// (thread.Own): on cgroup v1 it is in the group until then.
func (f *FS) Start(node string, cmd *exec.Cmd) error {
	path, flags := filepath.Join(f.Groups(), node), os.O_RDONLY
	if f.V1() {
		path, flags = filepath.Join(path, "tasks"), os.O_WRONLY
	}
	at, err := os.OpenFile(path, flags, 0)
	if err != nil {
		return fmt.Errorf("open the group of node %s: %w", node, err)
	}
	defer at.Close()
	if !f.V1() {
		cmd.SysProcAttr.UseCgroupFD, cmd.SysProcAttr.CgroupFD = true, int(at.Fd())
		return fork.Start(cmd)
	}
	if err := self(at); err != nil {
		return fmt.Errorf("enter the group of node %s: %w", node, err)
	}
	h, err := host.ReadMounted()
	if err != nil {
		return err
	}
	return group.StartOutside(h, cmd) // in v1's other trees it would be in the groups of the agent, and count there
}

// In reports whether a process is in a node's group.
func (f *FS) In(node string, pid int) (bool, error) {
	at, err := f.at.GroupOf(pid)
	return at == f.Group(node), err
}

// self moves the calling thread: 0 stands for it. It takes no grace period of the kernel, unlike the move of another thread.
func self(tasks *os.File) error {
	_, err := unix.Write(int(tasks.Fd()), []byte("0"))
	return err
}

// Enter moves a process to the group of the node that has an address. The process waits meanwhile, so nothing that it does for the
// node is done outside. node is "" for an address that is no node's.
func Enter(l layout.Layout, filesystem string, addr netip.Addr, pid int) (node string, err error) {
	node, ok, err := Lookup(l, filesystem, addr)
	if err != nil || !ok {
		return "", err
	}
	err = group.WriteFile(filepath.Join(Dir(l, filesystem), "groups", node, "cgroup.procs"), strconv.Itoa(pid))
	if errors.Is(err, syscall.ESRCH) {
		return "", refuse.NotFoundf("there is no process %d", pid)
	}
	if err != nil {
		return "", fmt.Errorf("move process %d to the group of node %s: %w", pid, node, err)
	}
	return node, nil
}
