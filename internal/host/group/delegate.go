package group

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"berth/internal/host"
)

// Delegate is a step that lets a node's root manage groups of its own inside the node's v2 group. The limits stay the
// host's: their files keep their owner. On v1 nothing is delegated, because that is not safe with its controllers.
type Delegate struct {
	Dir string `json:"dir"`
	UID uint32 `json:"uid"` // the node's root, as the host sees it
	GID uint32 `json:"gid"`
}

// DelegateStep returns the step for a node with an init system, whose root has these ids on the host; nil on a host
// without a v2 tree.
func DelegateStep(h host.Cgroups, path string, uid, gid uint32) *Delegate {
	if h.V2 == "" {
		return nil
	}
	return &Delegate{Dir: V2Dir(h, Container(h, path)), UID: uid, GID: gid}
}

// delegated returns the files of /sys/kernel/cgroup/delegate that only arrange processes; "" is the folder itself.
func delegated() []string {
	return []string{"", "cgroup.procs", "cgroup.subtree_control", "cgroup.threads"}
}

// Kind is "cgroup.delegate".
func (d *Delegate) Kind() string { return "cgroup.delegate" }

// String is "/sys/fs/cgroup/berth/wn-001 to 100000:100000".
func (d *Delegate) String() string { return fmt.Sprintf("%s to %d:%d", d.Dir, d.UID, d.GID) }

// Do gives the files to the node's root.
func (d *Delegate) Do(context.Context) error {
	for _, name := range delegated() {
		if err := os.Chown(filepath.Join(d.Dir, name), int(d.UID), int(d.GID)); err != nil {
			return fmt.Errorf("delegate: %w", err)
		}
	}
	return nil
}

// Verify checks the files' owner.
func (d *Delegate) Verify(context.Context) error {
	for _, name := range delegated() {
		var st unix.Stat_t
		file := filepath.Join(d.Dir, name)
		if err := unix.Stat(file, &st); err != nil {
			return fmt.Errorf("look at %s: %w", file, err)
		}
		if st.Uid != d.UID || st.Gid != d.GID {
			return fmt.Errorf("delegate %s: it belongs to %d:%d", file, st.Uid, st.Gid)
		}
	}
	return nil
}

// Undo does nothing: the files vanish with their group.
func (d *Delegate) Undo(context.Context) error { return nil }
