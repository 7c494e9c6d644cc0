package image

import (
	"archive/tar"
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
		if err := setAttr(fd, name, value); err != nil {
			return err
		}
	}
	return u.setList(fd, treetar.AccessList, own)
}

// setList sets an access control list, if there is one. The kernel gives the file the bits of the mode that belong to it. One that cannot be
// set because it names users without numbers is counted: the file keeps a mode that is right without.
func (u *unpacker) setList(fd int, attr string, list *treetar.ACL) error {
	if list == nil {
		return nil
	}
	value, ok := list.Value()
	if !ok {
		u.unlisted++
		return nil
	}
	if id := list.MostID(); id > maxID {
		return refuse.Invalidf("its access control list names the id %d, and a node has only the ids 0 to %d", id, maxID)
	}
	return setAttr(fd, attr, string(value))
}

func setAttr(fd int, attr, value string) error {
	err := unix.Fsetxattr(fd, attr, []byte(value), 0)
	switch {
	case err == unix.EOPNOTSUPP:
		return refuse.Cannotf("keep Berth's files on ext4, XFS or btrfs", "set attribute %s: the file system has no such attributes", attr)
	case err == unix.EINVAL || err == unix.ERANGE || err == unix.E2BIG:
		return refuse.Invalidf("the kernel does not take its attribute %s of %d bytes: %w", attr, len(value), err)
	case err != nil:
		return fmt.Errorf("set attribute %s: %w", attr, err)
	}
	return nil
}

// timespec returns a time as utimensat takes it: for access and change.
func timespec(t time.Time) ([]unix.Timespec, error) {
	ts, err := unix.TimeToTimespec(t)
	if err != nil {
		return nil, refuse.Invalidf("its time is out of range")
	}
	return []unix.Timespec{ts, ts}, nil
}
