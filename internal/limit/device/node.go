package device

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"berth/internal/spec/vnode"
	"berth/internal/storage/mounts"
	"berth/internal/sys/proof"
	"berth/internal/sys/refuse"
)

// Node is a step that makes a device appear in a running node's /dev, or vanish from it.
type Node struct {
	In    mounts.Running     `json:"in"`
	Path  string             `json:"path"`            // inside
	From  *mounts.DeviceNode `json:"from,omitempty"`  // the device node that is there now; nil: none
	To    *mounts.DeviceNode `json:"to,omitempty"`    // the device node that shall be there
	Group string             `json:"group,omitempty"` // folder of the node's cgroup; it is an error if a process in it has From open
}

// Kind is "device.node".
func (n *Node) Kind() string { return "device.node" }

// String is "/dev/data appears: b 8:16".
func (n *Node) String() string {
	what, d := "vanishes", n.From
	if n.To != nil {
		what, d = "appears", n.To
	}
	return fmt.Sprintf("%s %s: %s %d:%d", n.Path, what, d.Type, d.Major, d.Minor)
}

// Proved implements proof.Prover.
func (n *Node) Proved() []proof.Limit {
	if n.To == nil {
		return []proof.Limit{{Key: vnode.TakeDevice, Asked: n.Path, ReadBack: "none", By: "device node", Holds: true}}
	}
	number := fmt.Sprintf("%s %d:%d", n.To.Type, n.To.Major, n.To.Minor)
	return []proof.Limit{{Key: vnode.AddDevice, Asked: n.Path, ReadBack: number, By: "device node", Holds: true}}
}

// Do changes the node's /dev.
func (n *Node) Do(context.Context) error {
	if n.From != nil {
		if err := n.In.TakeDevice(n.Path, *n.From); err != nil {
			return err
		}
	}
	if n.To != nil {
		return n.In.PutDevice(n.Path, *n.To)
	}
	return nil
}

// Verify checks the node's /dev, and that no process of the node still has a removed device open.
func (n *Node) Verify(context.Context) error {
	want := n.From
	if n.To != nil {
		want = n.To
	}
	has, err := n.In.HasDevice(n.Path, *want)
	switch {
	case err != nil:
		return err
	case n.To != nil && !has:
		return fmt.Errorf("%s is not in the node's /dev", n.Path)
	case n.To == nil && has:
		return fmt.Errorf("%s is still in the node's /dev", n.Path)
	case n.To == nil:
		return n.Unused()
	}
	return nil
}

// Unused refuses to remove a device that a process of the node has open, because the process would keep it.
func (n *Node) Unused() error {
	if n.From == nil || n.Group == "" {
		return nil
	}
	if who := user(n.Group, *n.From); who != "" {
		return refuse.Busyf("device %s is open in the node, by %s, which would keep it; end that first", n.Path, who)
	}
	return nil
}

// Undo restores what was there. If process 1 of the node has ended there is no /dev, which is no error.
func (n *Node) Undo(context.Context) error {
	var err error
	if n.To != nil {
		err = n.In.TakeDevice(n.Path, *n.To)
	}
	if n.From != nil && err == nil {
		err = n.In.PutDevice(n.Path, *n.From)
	}
	if errors.Is(err, unix.ESRCH) {
		return nil
	}
	return err
}

// user names a process, in a group or one below it, that has the device open; "" if there is none.
func user(group string, d mounts.DeviceNode) string {
	who := ""
	_ = filepath.WalkDir(group, func(path string, e fs.DirEntry, err error) error {
		if err != nil || who != "" || !e.IsDir() {
			return nil //nolint:nilerr // a group that is gone has no processes
		}
		text, _ := os.ReadFile(filepath.Join(path, "cgroup.procs"))
		for pid := range strings.FieldsSeq(string(text)) {
			if hasOpen(pid, d) {
				name := attribute("/proc/"+pid, "comm")
				who = "process " + pid + " (" + strconv.QuoteToASCII(name) + ")"
				break
			}
		}
		return nil
	})
	return who
}

func hasOpen(pid string, d mounts.DeviceNode) bool {
	kind := uint16(unix.S_IFCHR)
	if d.Type == "b" {
		kind = unix.S_IFBLK
	}
	dir := "/proc/" + pid + "/fd"
	fds, err := os.ReadDir(dir)
	if err != nil {
		return false // the process has ended
	}
	for _, fd := range fds {
		var st unix.Statx_t
		// DONT_SYNC: a file system that hangs must not be asked.
		err := unix.Statx(unix.AT_FDCWD, filepath.Join(dir, fd.Name()), unix.AT_STATX_DONT_SYNC, unix.STATX_TYPE, &st)
		if err == nil && st.Mode&unix.S_IFMT == kind && st.Rdev_major == d.Major && st.Rdev_minor == d.Minor {
			return true
		}
	}
	return false
}

// distinct refuses two devices at one path inside the node.
func distinct(all []Granted) error {
	at := map[string]Granted{}
	for _, g := range all {
		if o, twice := at[g.Path]; twice {
			return refuse.Invalidf("devices %s and %s would both appear at %s", o.Spec.Path, g.Spec.Path, g.Path)
		}
		at[g.Path] = g
	}
	return nil
}
