package mounts

import (
	"errors"
	"fmt"
	"os"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"

	"berth/internal/sys/refuse"
)

// CanIdmap checks whether the file system at path can be idmapped; with recursive also all those mounted beneath it. It
// mounts nothing. The refusal names the file system that cannot, and a remedy.
func CanIdmap(path string, recursive bool) error {
	userns, err := UserNS(IDs{Base: 1 << 30, Size: 1})
	if err != nil {
		return err
	}
	defer userns.Close()
	t, err := openTree(path, 0, recursive)
	if err != nil {
		return err
	}
	defer t.close()
	return unmappable(path, recursive, userns, t.set(0, userns))
}

// unmappable turns the kernel's EINVAL or EPERM for an idmap into a refusal that names the file system. The kernel does
// not say which mount failed, so unmappable tries them one by one.
func unmappable(path string, recursive bool, userns *os.File, err error) error {
	if userns == nil || !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.EPERM) {
		return err
	}
	at, fstype := path, ""
	if m, lookErr := mountOf(path); lookErr == nil {
		fstype = m.FSType
	}
	if recursive && tryIdmap(path, userns) == nil {
		beneath, _ := mountinfo.GetMounts(mountinfo.PrefixFilter(path))
		for _, m := range beneath {
			if tryIdmap(m.Mountpoint, userns) != nil {
				at, fstype = m.Mountpoint, m.FSType
				break
			}
		}
	}
	return &refuse.Error{
		Kind:   refuse.Cannot,
		What:   fmt.Sprintf("the file system %s of %s cannot be idmapped: %v", fstype, at, err),
		Remedy: "put it on ext4, xfs, btrfs or tmpfs (not already idmapped), or use map: identity for a mount, user_namespace: false for a node",
		Err:    err,
	}
}

func tryIdmap(path string, userns *os.File) error {
	t, err := openTree(path, 0, false)
	if err != nil {
		return err
	}
	defer t.close()
	return t.set(0, userns)
}

// mountOf returns the mount that a path lies on, in the current thread's mount namespace.
func mountOf(path string) (*mountinfo.Info, error) {
	var stx unix.Statx_t
	if err := unix.Statx(unix.AT_FDCWD, path, unix.AT_NO_AUTOMOUNT, unix.STATX_MNT_ID, &stx); err != nil {
		return nil, fmt.Errorf("stat %s: %w", path, err)
	}
	f, err := os.Open("/proc/thread-self/mountinfo")
	if err != nil {
		return nil, fmt.Errorf("read the mounts: %w", err)
	}
	defer f.Close()
	found, err := mountinfo.GetMountsFromReader(f, func(m *mountinfo.Info) (skip, stop bool) {
		return uint64(m.ID) != stx.Mnt_id, uint64(m.ID) == stx.Mnt_id
	})
	if err != nil {
		return nil, fmt.Errorf("read the mounts: %w", err)
	}
	if len(found) == 0 {
		return nil, fmt.Errorf("no mount has %s", path)
	}
	return found[0], nil
}
