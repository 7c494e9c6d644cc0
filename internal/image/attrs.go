package image

import (
	"archive/tar"
	"fmt"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"berth/internal/refuse"
)

// setAttrs sets owner, mode and extended attributes, in this order: a change of owner clears a file's set-user-id bit
// and capabilities.
func setAttrs(fd int, h *tar.Header) error {
	if err := unix.Fchown(fd, h.Uid, h.Gid); err != nil {
		return err
	}
	if err := unix.Fchmod(fd, uint32(h.Mode)&0o7777); err != nil {
		return err
	}
	for record, value := range h.PAXRecords {
		if attr, ok := strings.CutPrefix(record, "SCHILY.xattr."); ok && keepAttr(attr) {
			if err := setAttr(fd, attr, value); err != nil {
				return err
			}
		}
	}
	return nil
}

// keepAttr reports whether an archive may set an extended attribute: file capabilities and user attributes. All others
// are dropped: security labels belong to the host that made them, and overlay's attributes (trusted.overlay.*,
// user.overlay.*) would let an archive redirect one path of the root to another.
func keepAttr(attr string) bool {
	return attr == "security.capability" || strings.HasPrefix(attr, "user.") && !strings.HasPrefix(attr, "user.overlay.")
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
