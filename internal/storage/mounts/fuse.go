package mounts

import (
	"fmt"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// FUSE is the mount of a FUSE file system. It is visible nowhere until it is put into a node.
type FUSE struct {
	t *tree
	// Device is the number of the file system: what stat(2) gives for its files. It tells this mount from others at the same place.
	Device uint64
}

// NewFUSE makes the mount of a file system whose requests are read from daemon, an open /dev/fuse. The kernel checks permissions by
// the owner and the mode that the daemon gives for each file, for all users of the node.
//
// The file system belongs to the host's user namespace, so the ids that the daemon gives are the host's.
func NewFUSE(daemon *os.File, name string, readOnly bool) (*FUSE, error) {
	fs, err := unix.Fsopen("fuse", unix.FSOPEN_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("make a FUSE file system: %w", err)
	}
	defer unix.Close(fs)
	for _, o := range []struct{ key, value string }{
		{"source", name},
		{"subtype", "sshfs"},
		{"fd", strconv.Itoa(int(daemon.Fd()))},
		{"rootmode", "40000"},
		{"user_id", "0"},
		{"group_id", "0"},
		{"allow_other", ""},
		{"default_permissions", ""},
	} {
		if o.value == "" {
			err = unix.FsconfigSetFlag(fs, o.key)
		} else {
			err = unix.FsconfigSetString(fs, o.key, o.value)
		}
		if err != nil {
			return nil, fmt.Errorf("set %s of a FUSE file system: %w", o.key, err)
		}
	}
	if readOnly { // of the file system itself: a node's root who may mount cannot take it away
		if err := unix.FsconfigSetFlag(fs, "ro"); err != nil {
			return nil, fmt.Errorf("make a FUSE file system read-only: %w", err)
		}
	}
	if err := unix.FsconfigCreate(fs); err != nil {
		return nil, fmt.Errorf("make a FUSE file system: %w", err)
	}
	flags := unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NODEV
	if readOnly {
		flags |= unix.MOUNT_ATTR_RDONLY
	}
	fd, err := unix.Fsmount(fs, unix.FSMOUNT_CLOEXEC, flags)
	if err != nil {
		return nil, fmt.Errorf("mount a FUSE file system: %w", err)
	}
	f := &FUSE{t: &tree{fd: fd, source: name, dir: true}}
	if f.Device, err = device(fd); err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// Ask asks the daemon for its root. It returns when the daemon has answered, or has ended.
func (f *FUSE) Ask() error {
	var st unix.Statx_t
	return unix.Statx(f.t.fd, "", unix.AT_EMPTY_PATH|unix.AT_STATX_FORCE_SYNC, unix.STATX_BASIC_STATS, &st)
}

// Close closes the mount. It ends, and its daemon too, if it was put nowhere.
func (f *FUSE) Close() { f.t.close() }

// Put puts the mount into a running node at target, a folder there, in place of the file system with the number old if that
// is there. It returns target without links, which are followed within the node's root, and only if old is 0.
//
// Errors: unix.ESRCH if the node's process 1 has ended.
func (f *FUSE) Put(node Running, target string, old uint64) (at string, err error) {
	return node.replace(f.t, target, old)
}

// Move mounts it at a folder, in the mount namespace of this thread.
func (f *FUSE) Move(at string) error { return f.t.move(at) }
