package oci

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// seal sets mount flags in the created node that the runtimes do not keep. The calling thread enters the node's mount
// namespace and stays there. It must be locked and have its own mount namespace and working directory.
//
//   - The root becomes nodev, and nosuid if the plan says so. Without a user namespace crun mounts it anew, without flags.
//   - On cgroup v1 the runtimes mount a tmpfs at /sys/fs/cgroup, with the node's groups in it, and leave it writable in
//     any case. seal makes it read-only. As a read-only path of the configuration, the groups would be mounted a second
//     time, writable.
func (l *Launch) seal() error {
	pid, err := readPID(l.PIDFile)
	if err != nil {
		return err
	}
	ns, err := os.Open(procPath(pid, "ns/mnt"))
	if err != nil {
		return fmt.Errorf("find the node's mount namespace: %w", err)
	}
	defer ns.Close()
	if err := unix.Setns(int(ns.Fd()), unix.CLONE_NEWNS); err != nil {
		return fmt.Errorf("enter the node's mount namespace: %w", err)
	}
	flags := uint64(unix.MOUNT_ATTR_NODEV)
	if l.Plan.Root.NoSUID {
		flags |= unix.MOUNT_ATTR_NOSUID
	}
	if err := unix.MountSetattr(unix.AT_FDCWD, "/", 0, &unix.MountAttr{Attr_set: flags}); err != nil {
		return fmt.Errorf("set the flags of the node's root: %w", err)
	}
	return sealGroups()
}

func sealGroups() error {
	const groups = "/sys/fs/cgroup"
	fd, err := unix.Openat2(unix.AT_FDCWD, groups, &unix.OpenHow{
		Flags: unix.O_PATH | unix.O_DIRECTORY | unix.O_CLOEXEC, Resolve: unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS,
	})
	if errors.Is(err, unix.ENOENT) { // a kernel without cgroups in /sys
		return nil
	}
	if err != nil {
		return fmt.Errorf("open the node's %s: %w", groups, err)
	}
	defer unix.Close(fd)
	var fs unix.Statfs_t
	if err := unix.Fstatfs(fd, &fs); err != nil {
		return fmt.Errorf("stat the node's %s: %w", groups, err)
	}
	if fs.Type != unix.TMPFS_MAGIC { // v2, or none
		return nil
	}
	if err := unix.MountSetattr(fd, "", unix.AT_EMPTY_PATH, &unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY}); err != nil {
		return fmt.Errorf("make the node's %s read-only: %w", groups, err)
	}
	return nil
}
