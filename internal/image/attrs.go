package image

import (
	"archive/tar"
	"errors"
	"fmt"
	"io"
	"strings"
	"syscall"

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

// archiveErr returns a refusal if err means a damaged archive. An error of the kernel or the context, or an existing
// refusal, is only wrapped.
func archiveErr(what string, err error) error {
	var errno syscall.Errno
	var refusal *refuse.Error
	switch {
	case errors.As(err, &errno), errors.As(err, &refusal), isContext(err):
		return readErr(what, err)
	case errors.Is(err, io.ErrUnexpectedEOF):
		return refuse.Invalidf("%s ends in the middle", what)
	case errors.Is(err, tar.ErrHeader):
		return refuse.Invalidf("%s is damaged, or no tar at all", what)
	}
	return refuse.Invalidf("%s is damaged: %w", what, err)
}

// entryErr adds the entry's name to err. Errors about an impossible name, from the kernel or from os.Root, become a
// refusal.
func entryErr(name string, err error) error {
	if _, ok := errors.AsType[*refuse.Error](err); ok {
		return fmt.Errorf("entry %q: %w", name, err)
	}
	var errno syscall.Errno
	if !errors.As(err, &errno) && !isContext(err) {
		// os.Root refused a path that leaves the folder.
		return refuse.Invalidf("entry %q: it leads out of the image: %w", name, err)
	}
	switch errno {
	case unix.ENAMETOOLONG, unix.ENOTDIR, unix.ELOOP, unix.EEXIST, unix.EINVAL, unix.ENOENT, unix.EMLINK:
		return refuse.Invalidf("entry %q: %w", name, err)
	}
	return fmt.Errorf("entry %q: %w", name, err)
}
