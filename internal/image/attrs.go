package image

import (
	"archive/tar"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"berth/internal/sys/refuse"
	"berth/internal/sys/treetar"
)

// setAttrs sets owner, mode, extended attributes and the access control list, in this order: a change of owner clears a file's set-user-id
// bit and capabilities, and the list changes the mode. New files in a folder would inherit its default list, so that one is set last.
func (u *unpacker) setAttrs(fd int, h *tar.Header) error {
	if err := unix.Fchown(fd, h.Uid, h.Gid); err != nil {
		return err
	}
	own, _ := treetar.Lists(h)
	if err := unix.Fchmod(fd, own.Narrow(uint32(h.Mode)&0o7777)); err != nil {
		return err
	}
	for name, value := range treetar.Attrs(h) {
		u.in.Most += int64(len(value))
		if err := u.spend(int64(len(value))); err != nil {
			return err
		}
		if err := setAttr(fd, name, value); err != nil {
			return err
		}
	}
	list, err := u.listValue(own)
	if err != nil || list == nil {
		return err
	}
	return setAttr(fd, treetar.AccessList, string(list))
}

// listValue returns an access control list as the kernel takes it; nil for none. The kernel gives the file the bits of the mode that belong to
// it. A list that cannot be set because it names users without numbers is counted: the file keeps a mode that is right without.
func (u *unpacker) listValue(list *treetar.ACL) ([]byte, error) {
	if list == nil {
		return nil, nil
	}
	value, ok := list.Value()
	if !ok {
		u.unlisted++
		return nil, nil
	}
	if id := list.MostID(); id > maxID {
		return nil, refuse.Invalidf("its access control list names the id %d, and a node has only the ids 0 to %d", id, maxID)
	}
	u.in.Most += int64(len(value))
	return value, u.spend(int64(len(value)))
}

func setAttr(fd int, attr, value string) error {
	err := unix.Fsetxattr(fd, attr, []byte(value), 0)
	if err == nil {
		return nil
	}
	var st unix.Statfs_t
	full := unix.Fstatfs(fd, &st) == nil && st.Blocks > 0 && st.Bavail*uint64(st.Bsize) < largeFile
	return attrErr(err, attr, len(value), full)
}

// attrErr explains that an attribute could not be set. The kernel says ENOSPC also where there is room enough, and the file system has none for
// this attribute: ext4 has one block for all that do not fit into the inode (xattr(7)). full: there is next to no room.
func attrErr(err error, attr string, size int, full bool) error {
	switch {
	case errors.Is(err, unix.EOPNOTSUPP):
		return refuse.Cannotf("keep Berth's files on ext4, XFS or btrfs", "set attribute %s: the file system has no such attributes", attr)
	case errors.Is(err, unix.EINVAL), errors.Is(err, unix.ERANGE), errors.Is(err, unix.E2BIG):
		return refuse.Invalidf("the kernel does not take its attribute %s of %d bytes: %w", attr, size, err)
	case errors.Is(err, unix.EDQUOT):
		return refuse.Cannotf("raise the quota of Berth's files, or free some of it (berth image prune), or leave the attribute out of the image",
			"set attribute %s of %d bytes: a quota of the file system has no room for it: %v", attr, size, err)
	case errors.Is(err, unix.ENOSPC) && !full: // not wrapped: it would be taken for a full disk
		return refuse.Cannotf("leave the attribute out of the image, or keep Berth's files on XFS (--root), which takes 64 KiB for each attribute",
			"set attribute %s of %d bytes: the file system has no room for it beside the file's others, though it is not full (ext4 has 4 KiB for all attributes of a file): %v",
			attr, size, err)
	}
	return fmt.Errorf("set attribute %s: %w", attr, err)
}

// timespec returns a time as utimensat takes it: for access and change.
func timespec(t time.Time) ([]unix.Timespec, error) {
	ts, err := unix.TimeToTimespec(t)
	if err != nil {
		return nil, refuse.Invalidf("its time is out of range")
	}
	return []unix.Timespec{ts, ts}, nil
}
